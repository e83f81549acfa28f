"""ask: one question through the gateway, its answer as it comes."""

import json
from collections.abc import Iterator
from typing import Annotated

import httpx
import typer
from rich.markup import escape

from llmgw_common.cli import session
from llmgw_common.cli.output import errors, plain


class AskError(Exception):
    """The gateway refused, or the stream ended with an error."""


def answer_of(server: str, key: str, model: str, question: str) -> Iterator[str]:
    """Yield the pieces of the answer to one question.

    Raises:
        AskError: with the gateway's own words.
        httpx.TransportError: the gateway cannot be reached.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 256,
    }
    headers = {"authorization": f"Bearer {key}"}
    url = f"{server.rstrip('/')}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=150.0) as answer:
        if answer.is_error:
            answer.read()
            raise AskError(_error_of(answer))
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line[6:])
                if "error" in event:
                    raise AskError(str(event["error"].get("message", "the stream failed")))
                for choice in event.get("choices", ()):
                    yield choice.get("delta", {}).get("content") or ""


def _error_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {answer.status_code}"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def ask(
        context: typer.Context,
        model: str,
        question: Annotated[list[str], typer.Argument(help="the question")],
    ) -> None:
        """Ask a model one question and print the answer as it comes."""
        chosen = session.of(context).context
        key = chosen.key.get_secret_value()
        try:
            for piece in answer_of(chosen.server, key, model, " ".join(question)):
                print(plain(piece), end="", flush=True)
            print()
        except AskError as error:
            errors.print(f"[red]no answer[/]: {escape(plain(error))}")
            raise typer.Exit(session.EXIT_FAILED) from error
        except httpx.TransportError as error:
            errors.print(f"[red]{escape(chosen.server)} cannot be reached[/]")
            raise typer.Exit(session.EXIT_NOT_REACHED) from error
