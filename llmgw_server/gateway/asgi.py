"""The gateway's edge to ASGI: reads a request, hands it to the core, writes what the core says.

Rule 1: the watcher that notices a leaving client belongs to the request, never to the connection.
Rule 2: nothing is decided from a rebuilt URL: the path comes from the scope, the key from headers.
Rule 3: an unknown path still needs a key: strangers learn nothing of what there is.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import structlog

from llmgw_common.ids import IdSource
from llmgw_server.gateway.auth import KeyRecord
from llmgw_server.gateway.core import Core
from llmgw_server.gateway.errors import Refusal, body_of
from llmgw_server.gateway.headers import Headers, is_event_stream
from llmgw_server.gateway.peek import too_large
from llmgw_server.gateway.relay import Call
from llmgw_server.gateway.table import ModelRoute
from llmgw_server.gateway.upstream import UpstreamError

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
SendMessage = Callable[[Message], Awaitable[None]]

GENERATING: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/score",
        "/tokenize",
        "/detokenize",
    }
)
_MODELS: Final = "/v1/models"
_JSON: Final = (b"content-type", b"application/json")


#: Bytes of a body that a slow but honest client sends in a second (design: fault R3).
_BODY_BYTES_A_SECOND: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """What one client may take; times in seconds.

    Attributes:
        body_bytes: largest request body.
        body_s: how long a body may take to come, beside a second for each 256 KiB.
        client_stall_s: how long a client may take nothing of its answer before it counts as gone.
    """

    body_bytes: int
    body_s: float
    client_stall_s: float


class _ClientGoneError(Exception):
    """The client left, or takes nothing any more."""


class GatewayApp:
    """The ASGI application of /v1 and its neighbours."""

    def __init__(self, core: Core, ids: IdSource, limits: EdgeLimits) -> None:
        self._core = core
        self._ids = ids
        self._limits = limits

    @staticmethod
    def owns(path: str) -> bool:
        """Say whether a path is the gateway's."""
        return path in GENERATING or path == "/v1" or path.startswith("/v1/")

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: SendMessage
    ) -> None:
        """Serve one HTTP request."""
        client = _AsgiClient(send, self._ids.new("req"), self._limits.client_stall_s)
        path: str = scope["path"]
        try:
            await self._serve(scope, path, receive, client)
        except Refusal as refusal:
            await client.refuse(refusal, path)
        except UpstreamError:
            await client.end(is_cut=True)
        except _ClientGoneError:
            return
        except Exception:
            # The top of a request: a fault of ours is told in the API's shape, and logged.
            log.exception(
                "request failed by a fault", request_id=client.request_id, path=path[:200]
            )
            await client.fault(path)

    async def _serve(
        self, scope: MutableMapping[str, Any], path: str, receive: Receive, client: "_AsgiClient"
    ) -> None:
        headers: Headers = list(scope["headers"])
        _check_framing(headers)
        key = self._core.authenticate(
            _values(headers, b"authorization"), _values(headers, b"x-api-key")
        )
        method: str = scope["method"]
        if path == _MODELS or path.startswith(_MODELS + "/"):
            _need(method, "GET", path)
            await client.json(self._models(unquote(path[len(_MODELS) + 1 :]), key))
            return
        if path not in GENERATING:
            raise Refusal(
                status=404, code="unknown_path", message=f"There is no {method} {path[:200]} here."
            )
        _need(method, "POST", path)
        call = Call(
            path=path,
            headers=headers,
            body=await _read_body(receive, headers, self._limits),
            request_id=client.request_id,
            limit_bytes=self._limits.body_bytes,
        )
        await _until_gone(self._core.serve(call, key, client), receive)
        await client.end()

    def _models(self, wanted: str, key: KeyRecord) -> dict[str, Any]:
        entries = [
            entry
            for route in self._core.table.routes
            for entry in _entries(route)
            if key.may_call(entry["id"], route.name)
        ]
        if not wanted:
            return {"object": "list", "data": entries}
        for entry in entries:
            if entry["id"] == wanted:
                return entry
        raise Refusal(
            status=404,
            code="model_not_found",
            message=f"The model {wanted[:200]!r} does not exist here or is not for this key.",
            param="model",
        )


def _entries(route: ModelRoute) -> list[dict[str, Any]]:
    shared = {"object": "model", "created": 0, "owned_by": "llmgw"}
    return [
        {"id": route.name, **shared},
        *({"id": alias, **shared, "root": route.name} for alias in route.aliases),
    ]


class _AsgiClient:
    """Writes one answer."""

    def __init__(self, send: SendMessage, request_id: str, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self.request_id = request_id
        self._has_head = False
        self._is_events = False
        self._is_over = False

    async def head(self, status: int, headers: Headers) -> None:
        self._has_head = True
        self._is_events = is_event_stream(headers)
        headers = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError as error:
            raise _ClientGoneError from error

    async def end(self, *, is_cut: bool = False) -> None:
        """End the answer, unless it was cut short and is no stream, which has its error event.

        Such a one is left open: the server then closes the connection, so that no client takes
        half an answer for a whole one.
        """
        if self._is_over or not self._has_head or (is_cut and not self._is_events):
            return
        self._is_over = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(self, content: dict[str, Any]) -> None:
        """Send a whole JSON answer."""
        await self._whole(200, msgspec.json.encode(content), [])

    async def refuse(self, refusal: Refusal, path: str) -> None:
        """Send a refusal; nothing was sent before."""
        extra = refusal.headers()
        if refusal.status == 401:
            extra.append((b"www-authenticate", b"Bearer"))
        if refusal.status == 408:
            extra.append((b"connection", b"close"))  # the rest of the body is not waited for
        await self._whole(refusal.status, body_of(refusal, path), extra)

    async def fault(self, path: str) -> None:
        """Say that we are at fault; an answer that has begun is left open, so it is seen as cut."""
        if not self._has_head:
            message = "The gateway failed; its log tells more under this answer's x-request-id."
            await self.refuse(Refusal(status=500, code="internal", message=message), path)

    async def _whole(self, status: int, body: bytes, extra: Headers) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.head(status, [_JSON, length, *extra])
        self._is_over = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for found, value in headers if found == name]


def _check_framing(headers: Headers) -> None:
    """Refuse what could mean two things (design: parser policy)."""
    names = [name for name, _ in headers]
    if names.count(b"host") > 1:
        raise Refusal(status=400, code="bad_request", message="The request has two Host headers.")
    if names.count(b"content-length") > 1 or (
        b"content-length" in names and b"transfer-encoding" in names
    ):
        raise Refusal(
            status=400, code="bad_request", message="The length of the body is ambiguous."
        )


def _need(method: str, wanted: str, path: str) -> None:
    if method != wanted:
        raise Refusal(
            status=405,
            code="method_not_allowed",
            message=f"{path} takes {wanted}, not {method[:20]}.",
        )


async def _read_body(receive: Receive, headers: Headers, limits: EdgeLimits) -> bytes:
    announced = _values(headers, b"content-length")
    size = int(announced[0]) if announced and announced[0].isdigit() else limits.body_bytes
    if size > limits.body_bytes:
        raise too_large(limits.body_bytes)
    limit_s = limits.body_s + size / _BODY_BYTES_A_SECOND
    try:
        async with asyncio.timeout(limit_s):
            return await _whole_body(receive, limits.body_bytes)
    except TimeoutError as error:
        raise Refusal(
            status=408,
            code="request_timeout",
            message=f"The body did not come within {limit_s:.0f} s.",
        ) from error


async def _whole_body(receive: Receive, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _until_gone(work: Awaitable[None], receive: Receive) -> None:
    """Await the work, or cancel it as soon as the client leaves."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise _ClientGoneError
        await doing
    finally:
        for task in (doing, gone):
            task.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
