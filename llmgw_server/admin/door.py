"""The door before the admin API: no key, no reading; and no body beyond its limit.

FastAPI reads and parses a body before a route's dependencies run. Here a stranger is turned away
before a byte of a body is read, and nobody can make the server hold more than the limit.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi.responses import Response
from starlette.exceptions import HTTPException

from llmgw_common.errors import LlmgwError
from llmgw_server.access.keys import ApiKeys
from llmgw_server.admin.problem import answer, problem_of
from llmgw_server.admin.roles import key_of

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: A catalog is at most 4 MiB of text; as JSON it may grow to twice that.
API_BODY_BYTES_MAX: Final = 9 << 20
#: A join request is a few hundred bytes; nobody has shown a key yet.
OPEN_BODY_BYTES_MAX: Final = 16 << 10


class AdminDoor:
    """Wraps the admin application (ASGI)."""

    def __init__(self, app: App, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_api = scope["path"].startswith("/api/")
        limit = API_BODY_BYTES_MAX if is_api else OPEN_BODY_BYTES_MAX
        try:
            if is_api:
                key_of(scope["headers"], self._keys)
            _check_length(scope["headers"], limit)
            await self._app(scope, _limited(receive, limit), send)
        except LlmgwError as error:
            await _refuse(problem_response(error), scope, receive, send)


def problem_response(error: LlmgwError) -> Response:
    """Return the problem document of an error."""
    return answer(problem_of(error.code, error.message))


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    # The rest of a body that is not read must not be taken for the next request.
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def _too_large(limit: int) -> LlmgwError:
    return LlmgwError("too_large", f"the body is larger than {limit} bytes")


def _check_length(headers: list[tuple[bytes, bytes]], limit: int) -> None:
    for name, value in headers:
        if name == b"content-length" and (len(value) > 15 or int(value) > limit):
            raise _too_large(limit)


def _limited(receive: Receive, limit: int) -> Receive:
    """Count what a body without an announced length brings."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            # FastAPI turns any other exception of a body into a 400.
            raise HTTPException(413, f"the body is larger than {limit} bytes")
        return message

    return counted
