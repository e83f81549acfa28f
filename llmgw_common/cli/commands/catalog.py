"""apply: put a catalog in force."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from llmgw_common.api.models import ApplyRequest, ApplyResult
from llmgw_common.cli import session
from llmgw_common.cli.output import Format, console, errors, plain, show


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def apply(
        context: typer.Context,
        file: Annotated[str, typer.Option("--file", "-f", help="catalog file, - for stdin")],
        dry_run: Annotated[bool, typer.Option(help="only tell what would change")] = False,
        if_revision: Annotated[
            int | None, typer.Option(help="refuse unless this revision is in force")
        ] = None,
    ) -> None:
        """Put a catalog in force: all of it, or nothing and every mistake told (exit code 2)."""
        request = ApplyRequest(
            text=_read(file), file=file, dry_run=dry_run, if_revision=if_revision
        )
        with session.api(context) as client:
            result = client.apply(request)
        if session.of(context).output is not Format.TABLE:
            show(result, session.of(context).output)
        else:
            _tell(result, dry_run=dry_run)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        errors.print(f"[red]{escape(file)} cannot be read[/]: {escape(str(error))}")
        raise typer.Exit(session.EXIT_BAD_INPUT) from error


def _tell(result: ApplyResult, *, dry_run: bool) -> None:
    for change in result.changes:
        before = "absent" if change.before is None else change.before
        after = "absent" if change.after is None else change.after
        console.print(escape(plain(f"  {change.path}: {before} -> {after}")))
    if dry_run:
        console.print(f"{len(result.changes)} changes; nothing was applied (dry run)")
    elif result.is_changed:
        console.print(f"revision {result.revision} is in force ({len(result.changes)} changes)")
    else:
        console.print(f"nothing changed; revision {result.revision} stays in force")
