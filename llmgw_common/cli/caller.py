"""Who calls whom: the server, the key and the form of the output, from flags, environment, context.

Flags win over the environment, that over the context in use, that over http://127.0.0.1:8000.

Rule 1: a key of a context goes to that context's server only: with another --server the context's
key stays at home.
Rule 2: a key is never printed, and never sent in plain text to another machine without a word.
"""

from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel, ValidationError

from llmgw_common.addresses import is_loopback
from llmgw_common.api.client import ApiClient
from llmgw_common.cli.contexts import Contexts
from llmgw_common.cli.exits import BadInputError
from llmgw_common.cli.output import Format, hint
from llmgw_common.clock import Clock, SystemClock

DEFAULT_SERVER: Final = "http://127.0.0.1:8000"

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What every command needs.

    Attributes:
        given_server: by flag or environment, empty if neither.
        given_key: likewise.
    """

    server: str
    key: str = field(repr=False)
    output: Format
    given_server: str
    given_key: str = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)

    def client(self, timeout_s: float = 30.0) -> ApiClient:
        """Return a client of the server; use it in a `with`."""
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            text = f"{self.server!r} is no address: write it like {DEFAULT_SERVER}"
            raise BadInputError(text)
        if parts.scheme == "http" and self.key and not is_loopback(parts.hostname):
            hint(f"note: the key crosses the network to {parts.hostname} in plain text")
        return ApiClient(self.server, self.key, timeout_s)


def resolve(
    server: str, key: str, context_name: str, output: Format, contexts: Contexts
) -> Caller:
    """Return the caller that flags, environment and contexts describe.

    Raises:
        BadInputError: a context is asked for that is not there.
    """
    name = context_name or contexts.current
    context = contexts.named(name) if name and (context_name or name in contexts.contexts) else None
    from_context = context.server if context else ""
    chosen = (server or from_context or DEFAULT_SERVER).rstrip("/")
    if not key and context and chosen == from_context.rstrip("/"):
        key = context.key.get_secret_value()
    return Caller(
        server=chosen, key=key, output=output, given_server=server, given_key=key
    )


def caller_of(context: typer.Context) -> Caller:
    """Return the caller that the global options made."""
    found = context.find_object(Caller)
    if found is None:
        raise RuntimeError("the global options come first")
    return found


def request_of(kind: type[Body], **fields: object) -> Body:
    """Return a request body.

    Raises:
        BadInputError: a field is not as the API wants it; values are not repeated.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        mistakes = error.errors(include_input=False, include_url=False)
        texts = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in mistakes]
        raise BadInputError("; ".join(texts)) from error
