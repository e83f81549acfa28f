"""The story of a request, in order: authenticate, peek, route, admit, pick, forward, book.

Free of ASGI and of sockets: an edge (asgi.py) gives a `Call` and a `Client` to answer to. When the
client leaves, the edge cancels `serve`; every exit gives the in-flight count back and books.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import structlog

from llmgw_server.gateway.account import Accounts
from llmgw_server.gateway.admission import Admission, not_ready, unknown_model
from llmgw_server.gateway.auth import (
    ANYBODY,
    GATEWAY_ROLES,
    UNAUTHENTICATED,
    ConflictingKeysError,
    KeyRecord,
    KeyRing,
    credential_of,
)
from llmgw_server.gateway.balance import Balance
from llmgw_server.gateway.errors import Refusal, event_of
from llmgw_server.gateway.metrics import GatewayMetrics
from llmgw_server.gateway.peek import Peek, decode_body, for_engine, peek
from llmgw_server.gateway.sse import UsageFilter, UsageTail, is_error_event
from llmgw_server.gateway.table import ModelRoute, RouteTable, Target, TargetKey
from llmgw_server.gateway.upstream import (
    Answer,
    Headers,
    StaleError,
    UpstreamError,
    UpstreamPool,
)

log = structlog.get_logger(__name__)

#: Tries of one request, the first included: once elsewhere, never after content.
TRIES_MAX: Final = 2
#: Answers that may be had elsewhere (before the first byte of content).
_ELSEWHERE: Final = frozenset({429, 503})

#: Request headers that go on to the engine; everything else is left behind (never copied).
_PASSED_ON: Final = frozenset(
    {
        b"accept", b"content-type", b"user-agent", b"anthropic-version", b"anthropic-beta",
        b"traceparent", b"tracestate",
    }
)  # fmt: skip
#: Answer headers that belong to one connection only (RFC 9110, 7.6.1), or that we set.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
        b"transfer-encoding", b"server", b"date", b"access-control-allow-origin",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as the edge read it; header names in lower case."""

    path: str
    headers: Headers
    body: bytes
    request_id: str
    limit_bytes: int

    def values(self, name: bytes) -> list[str]:
        """Return the values of a header."""
        return [v.decode("latin-1") for n, v in self.headers if n == name]


class Client(Protocol):
    """Whom to answer."""

    async def head(self, status: int, headers: Headers) -> None:
        """Send status and headers; once."""
        ...

    async def body(self, chunk: bytes) -> None:
        """Send bytes; waits while the client is slow."""
        ...


@dataclass(slots=True)
class _Relay:
    """What is known of one request while it runs."""

    call: Call
    key: KeyRecord
    found: Peek
    route: ModelRoute
    tail: UsageTail = field(default_factory=UsageTail)
    target: Target | None = None
    outcome: str = "client_gone"
    has_answered: bool = False


@dataclass(slots=True, kw_only=True)
class Core:
    """The parts that a request passes; `table` and `keys` are swapped whole."""

    admission: Admission
    balance: Balance
    pool: UpstreamPool
    accounts: Accounts
    metrics: GatewayMetrics
    needs_key: bool
    now: Callable[[], datetime]
    now_s: Callable[[], float]
    table: RouteTable = field(default_factory=RouteTable)
    keys: KeyRing = field(default_factory=lambda: KeyRing({}))

    # --- 1. authenticate -------------------------------------------------------------------------

    def authenticate(self, authorization: list[str], api_key: list[str]) -> KeyRecord:
        """Return the key of a request.

        Raises:
            Refusal: 401 with one text for every kind of no; 400 for two different keys.
        """
        if not self.needs_key:
            return ANYBODY
        try:
            credential = credential_of(authorization, api_key)
        except ConflictingKeysError as error:
            raise Refusal(
                status=400,
                code="conflicting_keys",
                message="Authorization and x-api-key hold different keys; send one.",
            ) from error
        record = self.keys.find(credential, self.now()) if credential else None
        if record is None or record.role not in GATEWAY_ROLES:
            raise Refusal(status=401, code="invalid_api_key", message=UNAUTHENTICATED)
        return record

    # --- the story -------------------------------------------------------------------------------

    async def serve(self, call: Call, key: KeyRecord, client: Client) -> None:
        """Serve one authenticated request to its end.

        Raises:
            Refusal: it cannot be served, and nothing was sent yet.
        """
        begun_s = self.now_s()
        encoding = ",".join(call.values(b"content-encoding"))
        body = decode_body(call.body, encoding, call.limit_bytes)
        found = peek(body)  # 2
        route = self.table.find(found.model)  # 3
        if route is None:
            raise unknown_model(found.model)
        if not key.may_call(found.model, route.name):
            raise Refusal(
                status=403,
                code="model_not_allowed",
                message=f"This key may not call {route.name}.",
                param="model",
            )
        relay = _Relay(call, key, found, route)
        try:
            relay.route = await self._admit(route)  # 4
            await self._forward(relay, body, client)  # 5, 6
        except Refusal as refusal:
            relay.outcome = refusal.code
            raise
        finally:
            self._book(relay, begun_s, len(body))  # 7

    async def _admit(self, route: ModelRoute) -> ModelRoute:
        if route.targets:
            return route
        waits_from_s = self.now_s()
        try:
            return await self.admission.wait(route, lambda: self.table)
        finally:
            self.metrics.queue.labels(route.name).observe(self.now_s() - waits_from_s)

    async def _forward(self, relay: _Relay, body: bytes, client: Client) -> None:
        tried: set[TargetKey] = set()
        refusal: Refusal | None = None
        while len(tried) < TRIES_MAX:
            targets = (self.table.find(relay.route.name) or relay.route).targets
            target = self.balance.pick(targets, tried)
            if target is None:
                break
            if tried:
                self.metrics.retries.labels(relay.route.name).inc()
            tried.add(target.key)
            relay.target = target
            refusal = await self._try(
                relay, target, body, client, is_last=len(targets) == len(tried)
            )
            if refusal is None:
                return
        raise refusal or not_ready(relay.route, "Its replicas left meanwhile.")

    async def _try(
        self, relay: _Relay, target: Target, body: bytes, client: Client, *, is_last: bool
    ) -> Refusal | None:
        """Send it to one replica; return why it may be tried elsewhere, None when it is over."""
        has_failed = True
        self.balance.begin(target)
        try:
            sent, adds_usage = for_engine(body, relay.call.path, relay.found, target.served_model)
            answer = await self._ask(relay, target, sent)
            try:
                if answer.head.status in _ELSEWHERE and not is_last:
                    return _busy(answer.head.status)
                has_failed = answer.head.status >= 500
                await self._relay(relay, answer, client, hides_usage=adds_usage)
            finally:
                answer.finish()
        except UpstreamError as error:
            has_failed = True
            log.warning("replica failed a request", replica_id=target.replica_id, error=str(error))
            if relay.has_answered:
                raise
            return _broken(relay.route.name)
        finally:
            self.balance.end(target, has_failed=has_failed)
        return None

    async def _ask(self, relay: _Relay, target: Target, body: bytes) -> Answer:
        request = _request(relay.call, target, body)
        sent_s = self.now_s()
        try:
            async with asyncio.timeout(relay.route.limits.first_byte_s):
                try:
                    answer = await self.pool.request(target, request)
                except StaleError:
                    answer = await self.pool.request(target, request, is_fresh=True)
        except TimeoutError as error:
            limit_s = relay.route.limits.first_byte_s
            raise UpstreamError(f"no answer within {limit_s:.0f} s") from error
        self.metrics.first_byte.labels(relay.route.name).observe(self.now_s() - sent_s)
        return answer

    # --- 6. bytes back ---------------------------------------------------------------------------

    async def _relay(
        self, relay: _Relay, answer: Answer, client: Client, *, hides_usage: bool
    ) -> None:
        head = answer.head
        is_stream = _is_event_stream(head.headers)
        first = await self._next(relay, answer)
        if is_stream and head.status == 200 and is_error_event(first):
            raise UpstreamError("the stream began with an error event")
        relay.has_answered = True
        await client.head(head.status, _answer_headers(relay, head.headers, is_stream=is_stream))
        passes = UsageFilter() if hides_usage and is_stream else None
        try:
            chunk = first
            while chunk:
                relay.tail.feed(chunk)
                visible = passes.feed(chunk) if passes else chunk
                if visible:
                    await client.body(visible)
                chunk = await self._next(relay, answer)
            if passes and (rest := passes.finish()):
                await client.body(rest)
            relay.outcome = "ok" if head.status < 400 else f"engine_{head.status}"
        except UpstreamError as error:
            relay.outcome = "cut"
            if is_stream:
                await client.body(event_of(_cut(relay.route.name, str(error)), relay.call.path))
            raise

    async def _next(self, relay: _Relay, answer: Answer) -> bytes:
        limit_s = relay.route.limits.between_bytes_s
        try:
            async with asyncio.timeout(limit_s):
                return await answer.read()
        except TimeoutError as error:
            answer.abort()
            raise UpstreamError(f"the engine was silent for {limit_s:.0f} s") from error

    # --- 7. book ---------------------------------------------------------------------------------

    def _book(self, relay: _Relay, begun_s: float, body_bytes: int) -> None:
        model = relay.route.name
        usage = relay.tail.usage()
        tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        is_estimated = usage is None and relay.has_answered and relay.tail.events > 0
        if is_estimated:
            # Four bytes of prompt a token, one content event a token: the usual rules of thumb.
            tokens = (body_bytes // 4, relay.tail.events)
        self.accounts.book(
            model=model,
            key_id=relay.key.key_id,
            replica_id=relay.target.replica_id if relay.target else "",
            outcome=relay.outcome,
            tokens=tokens,
            is_estimated=is_estimated,
        )
        self.metrics.requests.labels(model, relay.outcome).inc()
        self.metrics.tokens.labels(model, "prompt").inc(tokens[0])
        self.metrics.tokens.labels(model, "completion").inc(tokens[1])
        self.metrics.duration.labels(model).observe(self.now_s() - begun_s)


def _request(call: Call, target: Target, body: bytes) -> bytes:
    """Rebuild the request for the engine: our Host, our key, identity encoding."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        b"POST " + call.path.encode("latin-1") + b" HTTP/1.1",
        f"host: {host}:{target.port}".encode(),
        b"content-length: " + str(len(body)).encode(),
        b"accept-encoding: identity",
        b"x-request-id: " + call.request_id.encode(),
    ]
    if target.access_key:
        lines.append(b"authorization: Bearer " + target.access_key.encode())
    lines.extend(name + b": " + value for name, value in call.headers if name in _PASSED_ON)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _is_event_stream(headers: Headers) -> bool:
    return any(n == b"content-type" and b"text/event-stream" in v.lower() for n, v in headers)


def _answer_headers(relay: _Relay, headers: Headers, *, is_stream: bool) -> Headers:
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    kept = [(n, v) for n, v in headers if n not in _HOP_BY_HOP and n not in named]
    if is_stream:
        kept = [(n, v) for n, v in kept if n not in (b"content-length", b"cache-control")]
        kept += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    if relay.target:
        kept.append((b"x-llmgw-replica", relay.target.replica_id.encode()))
    return kept


def _busy(status: int) -> Refusal:
    return Refusal(
        status=status,
        code="overloaded",
        message="Every replica that was tried is busy.",
        retry_after_s=1,
    )


def _broken(model: str) -> Refusal:
    return Refusal(
        status=502,
        code="replica_failed",
        message=f"The replicas of {model} that were tried did not answer; try again.",
        retry_after_s=1,
    )


def _cut(model: str, why: str) -> Refusal:
    return Refusal(
        status=502, code="stream_cut", message=f"The replica of {model} failed in mid-stream: {why}"
    )
