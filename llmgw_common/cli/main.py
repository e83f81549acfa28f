"""Assembles `llmgw` from its groups of commands."""

from typing import Annotated

import typer

from llmgw_common.cli import session
from llmgw_common.cli.commands import access, ask, catalog, demo, show, story
from llmgw_common.cli.output import Format, console

VERSION = "0.1.0"

app = typer.Typer(
    name="llmgw",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Run language models on your GPU machines.\n\n"
        "Exit codes: 0 done, 1 failed, 2 bad input, 3 server not reached, 4 not allowed, "
        "5 not found."
    ),
)


@app.callback()
def options(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option(help="address of the server ($LLMGW_SERVER, or the context's)")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="API key; better: $LLMGW_KEY or a context")
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table for people, json or yaml for programs")
    ] = Format.TABLE,
) -> None:
    """Choose server, key and output."""
    context.obj = session.begin(server, key, output)


@app.command()
def version(context: typer.Context) -> None:
    """Print the version of this program and, if it answers, of the server."""
    console.print(f"llmgw {VERSION}")
    chosen = session.of(context).context
    if chosen.key.get_secret_value():
        with session.api(context) as client:
            console.print(f"server {client.version().version} at {chosen.server}")


for group in (catalog, show, story, access, ask, demo):
    group.register(app)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
