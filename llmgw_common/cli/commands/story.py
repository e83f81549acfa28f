"""why, logs, events: the answers to "what happened here"."""

from contextlib import suppress
from typing import Annotated

import typer
from rich.markup import escape

from llmgw_common.api.models import EventView
from llmgw_common.cli import session
from llmgw_common.cli.output import Format, console, plain, show


def why(context: typer.Context, model: str) -> None:
    """Tell why a model has the replicas that it has, and what is tried next."""
    with session.api(context) as client:
        found = client.explain(model)
    if session.of(context).output is not Format.TABLE:
        show(found, session.of(context).output)
        return
    for line in found.lines:
        console.print(escape(plain(line)))


def logs(
    context: typer.Context,
    replica: Annotated[str, typer.Argument(help="a replica's or shard's id, or a model")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until Ctrl-C")] = False,
    lines: Annotated[int, typer.Option(help="how many of the last lines")] = 200,
) -> None:
    """Print an engine's log."""
    with session.api(context) as client, suppress(KeyboardInterrupt):
        running = [r.id for r in client.replicas() if replica in (r.model, r.id)]
        wanted = running[-1] if running else replica
        for line in client.logs(wanted, lines=lines, follow=follow):
            print(plain(line), flush=True)


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until Ctrl-C")] = False,
    since: Annotated[int | None, typer.Option(help="only those after this id")] = None,
    limit: Annotated[int, typer.Option(help="how many at most")] = 100,
) -> None:
    """Print what happened, oldest first."""
    output = session.of(context).output
    with session.api(context) as client, suppress(KeyboardInterrupt):
        found = client.events(since=since, limit=limit)
        if output is Format.TABLE:
            for event in found:
                _print(event)
        else:
            show(found, output)
        if follow:
            last = found[-1].id if found else since or 0
            for event in client.follow_events(last):
                _print(event)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(why)
    app.command()(logs)
    app.command()(events)


def _print(event: EventView) -> None:
    actor = f" by {event.actor}" if event.actor != "llmgw" else ""
    line = f"{event.id:>5}  {event.at:%Y-%m-%d %H:%M:%S}  {event.code:<14} {event.text}{actor}"
    console.print(escape(plain(line)))
    tail = event.facts.get("log_tail")
    for text in str(tail).splitlines() if tail else ():
        console.print("         | " + escape(plain(text)))
