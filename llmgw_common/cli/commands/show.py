"""models, replicas, nodes, get, describe: how things stand."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.markup import escape

from llmgw_common.api.client import ApiClient
from llmgw_common.api.models import GpuView, ModelView, NodeView, ReplicaView
from llmgw_common.cli import session
from llmgw_common.cli.output import Format, ago, cell, console, plain, show, state, table
from llmgw_common.units import format_bytes


class Kind(StrEnum):
    """What can be got."""

    MODELS = "models"
    REPLICAS = "replicas"
    NODES = "nodes"
    EVENTS = "events"
    KEYS = "keys"
    CATALOG = "catalog"
    REVISIONS = "revisions"


class Described(StrEnum):
    """What can be described."""

    MODEL = "model"
    REPLICA = "replica"
    NODE = "node"


def models(context: typer.Context) -> None:
    """List models: how many replicas are wanted, there and ready."""
    _list(context, ApiClient.models, _models)


def replicas(context: typer.Context) -> None:
    """List replicas, ended ones for a while."""
    _list(context, ApiClient.replicas, _replicas)


def nodes(context: typer.Context) -> None:
    """List nodes."""
    _list(context, ApiClient.nodes, _nodes)


def get(
    context: typer.Context,
    kind: Kind,
    name: Annotated[str | None, typer.Argument(help="only this one")] = None,
) -> None:
    """Print things as they are, for programs (JSON unless -o yaml)."""
    output = session.of(context).output
    output = Format.JSON if output is Format.TABLE else output
    with session.api(context) as client:
        if kind is Kind.CATALOG and output is Format.JSON and name is None:
            print(client.catalog().text, end="")
            return
        show(_get(client, kind, name), output)


def describe(context: typer.Context, kind: Described, name: str) -> None:
    """Tell everything about one model, replica or node."""
    output = session.of(context).output
    with session.api(context) as client:
        found: BaseModel
        match kind:
            case Described.MODEL:
                found = client.model(name)
                tell: Callable[[Any], None] = _describe_model
            case Described.REPLICA:
                found, tell = client.replica(name), _describe_replica
            case Described.NODE:
                found, tell = client.node(name), _describe_node
    if output is Format.TABLE:
        tell(found)
    else:
        show(found, output)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(models)
    app.command()(replicas)
    app.command()(nodes)
    app.command()(get)
    app.command()(describe)


def _list(
    context: typer.Context,
    fetch: Callable[[ApiClient], Sequence[BaseModel]],
    tell: Callable[[Any], None],
) -> None:
    with session.api(context) as client:
        found = fetch(client)
    output = session.of(context).output
    if output is Format.TABLE:
        tell(found)
    else:
        show(found, output)


def _get(client: ApiClient, kind: Kind, name: str | None) -> BaseModel | Sequence[BaseModel]:
    many: dict[Kind, Callable[[], Any]] = {
        Kind.MODELS: client.models,
        Kind.REPLICAS: client.replicas,
        Kind.NODES: client.nodes,
        Kind.EVENTS: client.events,
        Kind.KEYS: client.keys,
        Kind.CATALOG: client.catalog,
        Kind.REVISIONS: client.revisions,
    }
    one: dict[Kind, Callable[[str], BaseModel]] = {
        Kind.MODELS: client.model,
        Kind.REPLICAS: client.replica,
        Kind.NODES: client.node,
    }
    if name is None:
        found: BaseModel | Sequence[BaseModel] = many[kind]()
        return found
    if kind not in one:
        raise typer.BadParameter(f"{kind.value} cannot be got one by one")
    return one[kind](name)


def _models(found: Sequence[ModelView]) -> None:
    rows = [
        (
            cell(m.name),
            state(m.state),
            f"{m.ready}/{m.wanted}",
            cell(m.kind),
            cell(", ".join(m.aliases) or "-"),
            cell(m.why or "-"),
        )
        for m in found
    ]
    nothing = "There are no models yet: write a catalog and `llmgw apply -f` it."
    table(("model", "state", "ready", "kind", "aliases", "why"), rows, nothing)


def _replicas(found: Sequence[ReplicaView]) -> None:
    rows = [
        (
            cell(r.id),
            cell(r.model),
            cell(r.node or "-"),
            state(r.state),
            ago(r.since),
            str(r.in_flight),
            cell(r.error or _progress(r) or "-"),
        )
        for r in found
    ]
    columns = ("replica", "model", "node", "state", "for", "in flight", "what")
    table(columns, rows, "There are no replicas.")


def _progress(replica: ReplicaView) -> str:
    for shard in replica.shards:
        if shard.fetch_done_bytes is not None:
            total = shard.fetch_total_bytes or 0
            of = f" of {format_bytes(total)}" if total else ""
            return f"{shard.state}: {format_bytes(shard.fetch_done_bytes)}{of}"
        if shard.state not in ("ready", "stopped"):
            return f"{shard.state}: {shard.step}" if shard.step else shard.state
    return "" if replica.freshness == "fresh" else replica.freshness


def _nodes(found: Sequence[NodeView]) -> None:
    rows = [
        (
            cell(n.name),
            state(n.state) + (" [yellow]cordoned[/]" if n.is_cordoned else ""),
            ago(n.since),
            _gpus(n.gpus),
            f"{n.cpu_count} cores, {format_bytes(n.memory_free_bytes)} free",
            str(n.shards),
            cell(", ".join(f"{k}={v}" for k, v in sorted(n.labels.items())) or "-"),
        )
        for n in found
    ]
    nothing = "No node has joined yet: `llmgw join-token` makes a token for an agent."
    table(("node", "state", "for", "gpus", "host", "shards", "labels"), rows, nothing)


def _gpus(gpus: Sequence[GpuView]) -> str:
    if not gpus:
        return "-"
    free = sum(g.is_healthy and not g.replica_id for g in gpus)
    return cell(f"{len(gpus)}x {gpus[0].name}, {free} free")


def _fields(pairs: Sequence[tuple[str, object]]) -> None:
    for name, value in pairs:
        console.print(f"[bold]{name + ':':<14}[/] {escape(plain(value))}")


def _describe_model(m: ModelView) -> None:
    _fields(
        (
            ("model", m.name),
            ("aliases", ", ".join(m.aliases) or "-"),
            ("kind", m.kind),
            ("state", m.state),
            ("replicas", f"{m.ready} ready, {m.have} there, {m.wanted} wanted ({m.min}-{m.max})"),
            ("waiting", f"{m.waiting} requests"),
            ("source", m.source),
            ("profiles", ", ".join(m.profiles)),
            ("priority", m.priority),
        )
    )
    console.print(escape(plain(m.why or f"`llmgw why {m.name}` tells more.")))


def _describe_replica(r: ReplicaView) -> None:
    _fields(
        (
            ("replica", r.id),
            ("model", f"{r.model} (profile {r.profile}, {r.freshness})"),
            ("engine", r.engine),
            ("state", f"{r.state} for {ago(r.since)}"),
            ("placed", f"{ago(r.created)} ago, because {r.reason or 'it was adopted'}"),
            ("ready", f"for {ago(r.ready_since)}"),
            ("last used", f"{ago(r.last_used)} ago" if r.last_used else "unknown"),
            ("in flight", r.in_flight),
            ("attempt", r.attempt),
        )
    )
    if r.error:
        console.print(f"[red]{escape(plain(r.error))}[/]")
    for s in r.shards:
        gpus = ",".join(map(str, s.gpu_indices)) or "CPU"
        line = (
            f"  shard {s.id} on {s.node} (GPUs {gpus}): {s.state} for {ago(s.since)}, pid {s.pid}"
        )
        console.print(escape(plain(line)))
        for text in s.log_tail:
            console.print("    | " + escape(plain(text)))
    if r.story:
        console.print("[bold]story[/]")
    for t in r.story:
        console.print(escape(plain(f"  {t.at:%H:%M:%S}  {t.before} -> {t.after}: {t.why}")))


def _describe_node(n: NodeView) -> None:
    _fields(
        (
            ("node", f"{n.name} ({n.id})"),
            ("state", f"{n.state} for {ago(n.since)}{', cordoned' if n.is_cordoned else ''}"),
            ("host", f"{n.os} {n.arch}, agent {n.agent_version}"),
            ("addresses", ", ".join(n.addresses)),
            ("cpu", f"{n.cpu_count} cores"),
            (
                "memory",
                f"{format_bytes(n.memory_free_bytes)} of {format_bytes(n.memory_total_bytes)} free",
            ),
            (
                "disk",
                f"{format_bytes(n.disk_free_bytes)} of {format_bytes(n.disk_total_bytes)} free",
            ),
            ("engines", ", ".join(n.engine_kinds)),
            ("GPUs", n.gpu_note or len(n.gpus)),
        )
    )
    for g in n.gpus:
        health = "" if g.is_healthy else f" UNHEALTHY: {g.health_text}"
        memory = format_bytes(g.memory_total_bytes) if g.memory_total_bytes else "?"
        line = f"  {g.index}: {g.name} {memory}, {g.model or 'free'}{health}"
        console.print(escape(plain(line)))
