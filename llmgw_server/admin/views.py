"""Values to views: what the fleet holds becomes what people and programs are shown."""

from datetime import datetime
from typing import Literal

from llmgw_common.api.models import (
    EventView,
    ExplainView,
    GpuView,
    KeyView,
    ModelView,
    NodeView,
    ReplicaView,
    ShardView,
    TransitionView,
    VerdictView,
)
from llmgw_common.clock import Clock, at_from_age
from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName
from llmgw_common.states import ReplicaState
from llmgw_server.access.keys import StoredKey
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.events import Event
from llmgw_server.fleet.model import FleetView, Node, Replica, Shard
from llmgw_server.planner.explain import Explanation
from llmgw_server.planner.scale_down import is_stale


def at(clock: Clock, at_s: float) -> datetime:
    """Return the wall time of a monotonic instant."""
    found = at_from_age(clock, at_s)
    return found if found is not None else clock.now()


def node_view(node: Node, fleet: FleetView, clock: Clock) -> NodeView:
    """Return a node, with what runs on each GPU."""
    users: dict[str, Replica] = {}
    shards = 0
    for replica in fleet.replicas.values():
        for shard in replica.shards:
            if shard.node_id == node.node_id and shard.holds_resources:
                shards += 1
                users.update(dict.fromkeys(shard.gpu_uuids, replica))
    return NodeView(
        id=node.node_id,
        name=node.name,
        state=node.state.value,
        since=at(clock, node.since_at_s),
        is_cordoned=node.is_cordoned,
        labels=dict(node.labels),
        addresses=node.addresses,
        agent_version=node.agent_version,
        os=node.os,
        arch=node.arch,
        cpu_count=node.cpu_count,
        memory_total_bytes=node.memory_total_bytes,
        memory_free_bytes=node.memory_free_bytes,
        disk_total_bytes=node.disk_total_bytes,
        disk_free_bytes=node.disk_free_bytes,
        gpus=tuple(
            GpuView(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                memory_total_bytes=gpu.memory_total_bytes,
                memory_free_bytes=gpu.memory_free_bytes,
                is_healthy=gpu.is_healthy,
                health_text=gpu.health_text,
                replica_id=users[gpu.uuid].replica_id if gpu.uuid in users else "",
                model=users[gpu.uuid].model if gpu.uuid in users else "",
            )
            for gpu in node.gpus
        ),
        gpu_note=node.gpu_note,
        engine_kinds=node.engine_kinds,
        is_simulated=node.is_simulated,
        shards=shards,
    )


def shard_view(shard: Shard, fleet: FleetView, clock: Clock) -> ShardView:
    """Return a shard; its access key is never shown."""
    error, fetch = shard.error, shard.fetch
    return ShardView(
        id=shard.shard_id,
        rank=shard.rank,
        node=_node_name(fleet, shard),
        state=shard.state.value,
        since=at(clock, shard.since_at_s),
        step=shard.step_text,
        pid=shard.pid,
        port=shard.port,
        url=shard.url,
        gpu_indices=shard.gpu_indices,
        fetch_done_bytes=fetch.bytes_done if fetch else None,
        fetch_total_bytes=fetch.bytes_total if fetch else None,
        error=error.text if error else "",
        error_kind=error.kind if error else "",
        log_tail=error.log_tail if error else (),
    )


def replica_view(replica: Replica, plane: ControlPlane) -> ReplicaView:
    """Return a replica with its shards and its story."""
    clock, fleet = plane.clock, plane.fleet()
    leader = replica.leader
    return ReplicaView(
        id=replica.replica_id,
        model=replica.model,
        profile=replica.profile,
        engine=replica.engine,
        state=replica.state.value,
        since=at(clock, replica.since_at_s),
        created=at(clock, replica.created_at_s),
        ready_since=at_from_age(clock, replica.ready_at_s),
        last_used=at_from_age(clock, replica.last_used_at_s),
        node=_node_name(fleet, leader) if leader else "",
        in_flight=plane.in_flight(replica.replica_id),
        attempt=replica.attempt,
        is_adopted=replica.is_adopted,
        freshness=_freshness(replica, plane.catalog.catalog),
        reason=replica.reason.text if replica.reason else "",
        error=replica.error,
        shards=tuple(shard_view(shard, fleet, clock) for shard in replica.shards),
        story=tuple(
            TransitionView(at=at(clock, t.at_s), before=t.before, after=t.after, why=t.why)
            for t in replica.story
        ),
    )


def _freshness(replica: Replica, catalog: Catalog) -> Literal["fresh", "stale", "unknown"]:
    if not replica.fingerprint:
        return "unknown"
    model = catalog.model(replica.model)
    return "stale" if model is None or is_stale(catalog, model, replica) else "fresh"


def model_view(model: Model, plane: ControlPlane) -> ModelView:
    """Return a model and how it stands, in one word and one line."""
    name = ModelName(model.name)
    fleet, plan = plane.fleet(), plane.plan()
    replicas = fleet.replicas_of(model.name)
    wanted = plan.wanted.get(name, model.scaling.min)
    ready = sum(replica.state is ReplicaState.READY for replica in replicas)
    have = sum(replica.counts_toward_wanted for replica in replicas)
    unmet = plan.unmet.get(name)
    return ModelView(
        name=model.name,
        aliases=tuple(model.aliases),
        kind=model.kind,
        source=model.source,
        priority=model.priority,
        profiles=tuple(profile.name for profile in model.profiles),
        min=model.scaling.min,
        max=model.scaling.most,
        wanted=wanted,
        have=have,
        ready=ready,
        waiting=plane.demand().waiting.get(name, 0),
        state=_model_state(wanted, have, ready, is_short=unmet is not None),
        why=unmet.reason.text if unmet else "",
    )


def _model_state(wanted: int, have: int, ready: int, *, is_short: bool) -> str:
    if wanted == 0 and have == 0:
        return "on demand"
    if ready >= wanted:
        return "ready"
    if ready:
        return "degraded" if is_short else "scaling"
    return "waiting" if is_short else "starting"


def explain_view(found: Explanation, clock: Clock) -> ExplainView:
    """Return an explanation."""
    unmet = found.unmet
    return ExplainView(
        model=found.model,
        wanted=found.wanted,
        have=found.have,
        ready=found.ready,
        lines=found.lines,
        missing=unmet.missing if unmet else 0,
        reason_code=unmet.reason.code.value if unmet else "",
        reason=unmet.reason.text if unmet else "",
        verdicts=tuple(
            VerdictView(
                candidate=v.candidate,
                profile=v.profile,
                code=v.reason.code.value,
                text=v.reason.text,
                facts=dict(v.reason.facts),
            )
            for v in (unmet.verdicts if unmet else ())
        ),
        retry_at=at_from_age(clock, unmet.retry_at_s) if unmet else None,
    )


def event_view(event: Event) -> EventView:
    """Return an event."""
    return EventView(
        id=event.id,
        at=event.at,
        object_kind=event.object_kind,
        object_id=event.object_id,
        code=event.code,
        text=event.text,
        actor=event.actor,
        trace_id=event.trace_id,
        facts=event.facts,
    )


def key_view(key: StoredKey) -> KeyView:
    """Return a key without its digest."""
    record = key.record
    return KeyView(
        id=record.key_id,
        name=record.name,
        role=record.role,
        models=None if record.models is None else tuple(sorted(record.models)),
        created_at=key.created_at,
        expires_at=record.expires_at,
        is_disabled=record.is_disabled,
    )


def _node_name(fleet: FleetView, shard: Shard) -> str:
    node = fleet.nodes.get(shard.node_id)
    return node.name if node else shard.node_id
