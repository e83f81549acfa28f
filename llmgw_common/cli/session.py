"""What every command shares: the chosen server and output, and errors turned into exit codes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import httpx
import typer
from rich.markup import escape

from llmgw_common.api.client import ApiClient, ApiError
from llmgw_common.api.problem import Problem
from llmgw_common.cli import contexts
from llmgw_common.cli.output import Format, errors, plain

EXIT_FAILED: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_NOT_REACHED: Final = 3
EXIT_NOT_ALLOWED: Final = 4
EXIT_NOT_FOUND: Final = 5

_EXITS: Final = {
    401: EXIT_NOT_ALLOWED,
    403: EXIT_NOT_ALLOWED,
    404: EXIT_NOT_FOUND,
    409: EXIT_FAILED,
    412: EXIT_FAILED,
    422: EXIT_BAD_INPUT,
    400: EXIT_BAD_INPUT,
}


@dataclass(frozen=True, slots=True)
class Session:
    """The options before the command's name."""

    context: contexts.Context
    output: Format


def of(context: typer.Context) -> Session:
    """Return the session of a command."""
    found: Session = context.find_root().obj
    return found


def begin(server: str | None, key: str | None, output: Format) -> Session:
    """Make the session from flags, environment and context file."""
    try:
        kept = contexts.read(contexts.file_path(os.environ))
    except contexts.ContextFileError as error:
        errors.print(escape(str(error)))
        raise typer.Exit(EXIT_BAD_INPUT) from error
    return Session(contexts.choose(server, key, os.environ, kept), output)


@contextmanager
def api(context: typer.Context) -> Iterator[ApiClient]:
    """Give a client; whatever goes wrong is told in words and ends with its exit code."""
    chosen = of(context).context
    try:
        with ApiClient(chosen.server, chosen.key.get_secret_value()) as client:
            yield client
    except ApiError as error:
        tell(error.problem)
        raise typer.Exit(_EXITS.get(error.problem.status, EXIT_FAILED)) from error
    except httpx.TransportError as error:
        errors.print(f"[red]{escape(chosen.server)} cannot be reached[/]: {escape(str(error))}")
        raise typer.Exit(EXIT_NOT_REACHED) from error


def tell(problem: Problem) -> None:
    """Print why the server refused, every mistake on a line of its own."""
    errors.print(f"[red]{escape(plain(problem.title))}[/]: {escape(plain(problem.detail))}")
    for mistake in problem.errors:
        place = f"{mistake.file}:{mistake.line}" if mistake.line else mistake.file
        hint = f" ({mistake.hint})" if mistake.hint else ""
        parts = [part for part in (place, mistake.path, mistake.message + hint) if part]
        errors.print("  " + escape(plain(": ".join(parts))))
