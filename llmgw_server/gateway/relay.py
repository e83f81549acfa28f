"""One try of a request at one replica: ask, look at the first bytes, pass the answer on.

Rule 1: nothing goes to the client before the first bytes of content were looked at: a stream that
begins with an error gets a real status, and may be tried elsewhere.
Rule 2: after the first byte of content an error ends the answer; it is never tried again.
Rule 3: every exit gives the connection back or closes it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from llmgw_server.gateway.auth import KeyRecord
from llmgw_server.gateway.errors import Refusal, event_of
from llmgw_server.gateway.headers import Headers, client_headers, engine_request, is_event_stream
from llmgw_server.gateway.metrics import GatewayMetrics
from llmgw_server.gateway.peek import Peek, for_engine
from llmgw_server.gateway.sse import ErrorEvent, UsageFilter, UsageTail, first_error, wants_more
from llmgw_server.gateway.table import ModelRoute, Target
from llmgw_server.gateway.upstream import (
    Answer,
    SilentError,
    StaleError,
    UpstreamError,
    UpstreamPool,
)

#: Answers that may be had elsewhere (before the first byte of content).
_ELSEWHERE = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as the edge read it; header names in lower case."""

    path: str
    headers: Headers
    body: bytes = field(repr=False)
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
class Relay:
    """What is known of one request while it runs.

    Attributes:
        has_answered: the client has got a status; from here on nothing is tried again.
    """

    call: Call
    key: KeyRecord
    found: Peek
    route: ModelRoute
    tail: UsageTail = field(default_factory=UsageTail)
    target: Target | None = None
    outcome: str = "client_gone"
    has_answered: bool = False
    is_stream: bool = False


class BusyError(UpstreamError):
    """The replica said that another one should be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarder:
    """Sends requests to replicas and their answers to clients."""

    pool: UpstreamPool
    metrics: GatewayMetrics
    now_s: Callable[[], float]

    async def run(
        self, relay: Relay, target: Target, body: bytes, client: Client, *, is_last: bool
    ) -> bool:
        """Send the request to one replica and its answer to the client.

        `is_last` says that nobody else will be asked: the answer stands, whatever it is.

        Returns:
            Whether the replica did its part; a 4xx is the request's own fault (case L01).

        Raises:
            BusyError: another replica should be asked.
            SilentError: no first byte within the model's limit.
            UpstreamError: the replica failed; `relay.has_answered` says whether it is too late to
                try again.
        """
        sent, adds_usage = for_engine(body, relay.call.path, relay.found, target.served_model)
        answer, first = await self._ask(relay, target, sent)
        try:
            status = answer.head.status
            if status in _ELSEWHERE and not is_last:
                raise BusyError(f"the replica answered {status}")
            relay.is_stream = is_event_stream(answer.head.headers)
            error = first_error(first) if relay.is_stream and status == 200 else None
            if error is not None:
                return await self._refused_in_stream(relay, error, client, is_last=is_last)
            await self._pass_on(relay, answer, first, client, hides_usage=adds_usage)
            return status < 500
        finally:
            answer.finish()

    # --- ask and look ----------------------------------------------------------------------------

    async def _ask(self, relay: Relay, target: Target, body: bytes) -> tuple[Answer, bytes]:
        """Return the answer and the first bytes of its content."""
        call, limits = relay.call, relay.route.limits
        limit_s = limits.first_byte_s if relay.found.is_stream else limits.whole_answer_s
        request = engine_request(call.path, call.headers, call.request_id, target, body)
        sent_s = self.now_s()
        try:
            async with asyncio.timeout(limit_s):
                try:
                    answer = await self.pool.request(target, request)
                except StaleError:
                    answer = await self.pool.request(target, request, is_fresh=True)
                first = await _look(answer)
        except TimeoutError as error:
            raise SilentError(f"no answer within {limit_s:.0f} s") from error
        self.metrics.first_byte.labels(relay.route.name).observe(self.now_s() - sent_s)
        return answer, first

    async def _refused_in_stream(
        self, relay: Relay, error: ErrorEvent, client: Client, *, is_last: bool
    ) -> bool:
        if not error.is_neutral and not is_last:
            raise BusyError(f"the stream began with an error event of status {error.status}")
        relay.has_answered = True
        relay.is_stream = False
        relay.outcome = f"engine_{error.status}"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(error.payload)).encode()),
        ]
        replica_id = relay.target.replica_id if relay.target else ""
        await client.head(error.status, client_headers(headers, replica_id, is_stream=False))
        await client.body(error.payload)
        return error.is_neutral

    # --- pass on ---------------------------------------------------------------------------------

    async def _pass_on(
        self, relay: Relay, answer: Answer, first: bytes, client: Client, *, hides_usage: bool
    ) -> None:
        head = answer.head
        replica_id = relay.target.replica_id if relay.target else ""
        relay.has_answered = True
        await client.head(
            head.status, client_headers(head.headers, replica_id, is_stream=relay.is_stream)
        )
        hides = UsageFilter() if hides_usage and relay.is_stream else None
        try:
            chunk = first
            while chunk:
                relay.tail.feed(chunk)
                visible = hides.feed(chunk) if hides else chunk
                if visible:
                    await client.body(visible)
                chunk = await _next(answer, relay.route.limits.between_bytes_s)
        except UpstreamError as error:
            relay.outcome = "cut"
            if relay.is_stream:
                # An event that was cut short and has gone out already must not swallow the error.
                gap = b"" if hides or relay.tail.is_between_events else b"\n\n"
                event = event_of(_cut(relay.route.name, str(error)), relay.call.path)
                await client.body(gap + event)
            raise
        if hides and (rest := hides.finish()):
            await client.body(rest)
        relay.outcome = _outcome(relay, head.status)


def _outcome(relay: Relay, status: int) -> str:
    if status >= 400:
        return f"engine_{status}"
    return relay.tail.ending(relay.call.path) if relay.is_stream else "ok"


async def _look(answer: Answer) -> bytes:
    """Return the first bytes of content: of a stream, so many that an error would be seen."""
    try:
        first = await answer.read()
        if is_event_stream(answer.head.headers):
            while first and wants_more(first):
                chunk = await answer.read()
                if not chunk:
                    break
                first += chunk
    except BaseException:
        answer.abort()
        raise
    return first


async def _next(answer: Answer, limit_s: float) -> bytes:
    try:
        async with asyncio.timeout(limit_s):
            return await answer.read()
    except TimeoutError as error:
        answer.abort()
        raise UpstreamError(f"the engine was silent for {limit_s:.0f} s") from error


def _cut(model: str, why: str) -> Refusal:
    return Refusal(
        status=502, code="stream_cut", message=f"The replica of {model} failed in mid-stream: {why}"
    )
