"""demo: everything on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from llmgw_common.cli import session
from llmgw_common.cli.demo.story import QUESTION, DemoError, Wishes, parse_fleet, run
from llmgw_common.cli.output import console, errors


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        once: Annotated[bool, typer.Option("--once", help="end after the answer")] = False,
        simulate: Annotated[
            str | None, typer.Option(help="a simulated fleet instead, like 3x8xH200")
        ] = None,
        state_dir: Annotated[Path | None, typer.Option(help="where everything is kept")] = None,
        port: Annotated[int, typer.Option(help="port to try first")] = 8000,
        question: Annotated[str, typer.Option(help="what to ask")] = QUESTION,
    ) -> None:
        """Run server, agent, engine and model on this machine, and ask one question."""
        name = "simulated" if simulate else "demo"
        folder = state_dir or Path(".state") / name
        try:
            fleet = parse_fleet(simulate) if simulate else None
            wishes = Wishes(folder=folder, port=port, question=question, once=once, fleet=fleet)
            run(wishes, console)
        except DemoError as error:
            errors.print(f"[red]The demo failed[/]: {escape(str(error))}")
            raise typer.Exit(session.EXIT_FAILED) from error
