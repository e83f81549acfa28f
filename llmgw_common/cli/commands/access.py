"""keys, join-token, cordon, uncordon, node-remove, context: who and what may come in."""

import os
from typing import Annotated

import typer
from pydantic import SecretStr
from rich.markup import escape

from llmgw_common.api.models import JoinTokenRequest, KeyRequest, Role
from llmgw_common.api_keys import mint_key
from llmgw_common.cli import contexts, session
from llmgw_common.cli.output import Format, ago, cell, console, errors, show, table
from llmgw_common.units import parse_duration


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def join_token(
    context: typer.Context,
    ttl: Annotated[str, typer.Option(help="how long it is good, like 1h")] = "1h",
    uses: Annotated[int, typer.Option(help="how many machines may use it")] = 1,
    label: Annotated[list[str] | None, typer.Option(help="key=value for the node")] = None,
) -> None:
    """Make a token with which an agent joins; it is printed once and kept nowhere."""
    pairs = [text.partition("=") for text in label or []]
    if any(not separator or not name for name, separator, _ in pairs):
        raise typer.BadParameter("write labels like --label rack=r7")
    request = JoinTokenRequest(
        ttl_s=_seconds(ttl) or 3600, uses=uses, labels={k: v for k, _, v in pairs}
    )
    with session.api(context) as client:
        made = client.create_join_token(request)
    if session.of(context).output is Format.TABLE:
        print(made.text)
    else:
        show(made, session.of(context).output)


def cordon(context: typer.Context, node: str) -> None:
    """Place nothing new on a node; what runs there goes on."""
    with session.api(context) as client:
        client.cordon(node, is_cordoned=True)
    console.print(f"node {cell(node)} is cordoned")


def uncordon(context: typer.Context, node: str) -> None:
    """Let new work onto a node again."""
    with session.api(context) as client:
        client.cordon(node, is_cordoned=False)
    console.print(f"node {cell(node)} takes new work")


def node_remove(context: typer.Context, node: str) -> None:
    """Forget a node and revoke its credential."""
    with session.api(context) as client:
        client.remove_node(node)
    console.print(f"node {cell(node)} is removed")


def set_context(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="use this one from now on")] = None,
    server: Annotated[str | None, typer.Option(help="keep this address under the name")] = None,
    key: Annotated[str | None, typer.Option(help="keep this key under the name")] = None,
) -> None:
    """List the contexts, use one, or keep a server and a key under a name."""
    path = contexts.file_path(os.environ)
    kept = contexts.read(path)
    if name is None:
        rows = [
            (("* " if n == kept.current else "  ") + cell(n), cell(c.server))
            for n, c in sorted(kept.contexts.items())
        ]
        table(("context", "server"), rows, "There are no contexts yet.")
        return
    if server or key:
        before = kept.contexts.get(name, contexts.Context())
        kept.contexts[name] = contexts.Context(
            server=server or before.server, key=SecretStr(key) if key else before.key
        )
    if name not in kept.contexts:
        errors.print(f"there is no context {escape(name)}: give --server and --key to make it")
        raise typer.Exit(session.EXIT_NOT_FOUND)
    contexts.write(path, kept.model_copy(update={"current": name}))
    console.print(f"context {cell(name)} is in use")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(no_args_is_help=True, help="API keys.")
    app.add_typer(keys, name="keys")
    _register_keys(keys)
    app.command("join-token")(join_token)
    app.command()(cordon)
    app.command()(uncordon)
    app.command("node-remove")(node_remove)
    app.command("context")(set_context)


def create(
    context: typer.Context,
    name: str,
    role: Annotated[str, typer.Option(help="client, viewer, operator or admin")] = "client",
    models: Annotated[str | None, typer.Option(help="only these, with commas")] = None,
    expires: Annotated[str | None, typer.Option(help="after this time, like 90d")] = None,
) -> None:
    """Make a key; its text is printed once and kept nowhere."""
    roles: dict[str, Role] = {r: r for r in ("client", "viewer", "operator", "admin")}
    if role not in roles:
        raise typer.BadParameter(f"role must be one of {', '.join(roles)}")
    names = None if models is None else tuple(m.strip() for m in models.split(","))
    request = KeyRequest(name=name, role=roles[role], models=names, expires_in_s=_seconds(expires))
    with session.api(context) as client:
        made = client.create_key(request)
    if session.of(context).output is Format.TABLE:
        print(made.text)
    else:
        show(made, session.of(context).output)


def list_keys(context: typer.Context) -> None:
    """List the keys; their texts are kept nowhere."""
    with session.api(context) as client:
        found = client.keys()
    if session.of(context).output is not Format.TABLE:
        show(found, session.of(context).output)
        return
    rows = [
        (
            cell(k.id),
            cell(k.name),
            cell(k.role),
            cell("all" if k.models is None else ", ".join(k.models)),
            ago(k.created_at),
            f"{k.expires_at:%Y-%m-%d}" if k.expires_at else "-",
            "[red]revoked[/]" if k.is_disabled else "usable",
        )
        for k in found
    ]
    table(("id", "name", "role", "models", "age", "expires", "state"), rows, "No keys.")


def revoke(context: typer.Context, key_id: str) -> None:
    """Disable a key; it stops working at once."""
    with session.api(context) as client:
        client.revoke_key(key_id)
    console.print(f"key {cell(key_id)} is revoked")


def mint() -> None:
    """Print the text of a new key without a server, for bootstrap_admin_key_file."""
    print(mint_key())


def _register_keys(keys: typer.Typer) -> None:
    """Add the commands."""
    keys.command()(create)
    keys.command("list")(list_keys)
    keys.command()(revoke)
    keys.command()(mint)
