"""The client to the engines: pooled keep-alive connections, parsed by httptools.

Rule 1: a connection goes back to the pool only when its answer ended cleanly and both sides want to
keep it; on any doubt it is closed (response smuggling).
Rule 2: the body is read no faster than it is taken: above `BUFFER_BYTES` the socket is paused.
Rule 3: a request that gets no byte back on a pooled connection may be sent again (`StaleError`);
one that failed on a fresh connection may not have been processed only if the connect itself failed.
Rule 4: interim (1xx) answers are skipped; trailers are dropped.
"""

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import Final, cast

import httptools

from llmgw_server.gateway.headers import Headers
from llmgw_server.gateway.table import Target

#: Bytes of an answer that may wait for a slow client before the engine's socket is paused.
BUFFER_BYTES: Final = 256 << 10
CONNECT_S: Final = 1.0
#: Idle connections kept a replica.
IDLE_MAX: Final = 64
#: Head of an answer (bytes) that is still believed to be one.
HEAD_BYTES_MAX: Final = 64 << 10
#: A host that is silent for 10 s and then answers no probe, or takes no bytes for 15 s, is gone.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 15_000,
    "TCP_NODELAY": 1,
}


class UpstreamError(Exception):
    """The engine did not answer as an HTTP server should."""


class ConnectError(UpstreamError):
    """No connection came about: the request was surely not processed."""


class SilentError(UpstreamError):
    """The engine took longer than it may: it may still be at work, so nobody else is asked."""


class StaleError(UpstreamError):
    """A pooled connection was closed before it gave a byte: safe to send again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: Headers


class Answer:
    """An answer as it comes in; must be closed by `finish` or `abort`."""

    __slots__ = ("_connection", "head")

    def __init__(self, connection: "_Connection", head: Head) -> None:
        self._connection = connection
        self.head = head

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end.

        Raises:
            UpstreamError: the answer was cut off or is no HTTP.
        """
        return await self._connection.read()

    def finish(self) -> None:
        """Give the connection back if the answer ended cleanly, else close it."""
        self._connection.finish()

    def abort(self) -> None:
        """Close the connection: the engine sees that nobody listens any more."""
        self._connection.abort()


class _Connection(asyncio.Protocol):
    """One connection to one engine; serves one request at a time."""

    def __init__(self, pool: "UpstreamPool", address: tuple[str, int]) -> None:
        self._pool = pool
        self.address = address
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self.is_used = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._head_bytes = 0
        self._head: asyncio.Future[Head] | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._is_paused = False
        self._is_interim = False
        self._has_head = False
        self._has_length = False
        self._is_done = False
        self._is_unclean = False
        self._keeps_alive = False
        self._error: UpstreamError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._got_bytes = False

    # --- used by the pool ------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """It can take a request."""
        return not self._is_lost and self._transport is not None

    async def send(self, request: bytes) -> Head:
        """Send a request and wait for the head of its answer."""
        self._head = asyncio.get_running_loop().create_future()
        if self._transport is None or self._is_lost:
            raise StaleError("the pooled connection is closed")
        self._transport.write(request)
        return await self._head

    async def read(self) -> bytes:
        while not self._chunks:
            if self._error:
                raise self._error
            if self._is_done:
                return b""
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        joined = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._is_paused and self._transport:
            self._is_paused = False
            self._transport.resume_reading()
        return joined

    def finish(self) -> None:
        is_clean = self._is_done and not self._is_unclean and not self._chunks
        if is_clean and self._keeps_alive and self.is_open:
            self._reset()
            self.is_used = True
            self._pool.give_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's callbacks ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        _notice_dead_hosts(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._got_bytes = True
        if self._head is None or self._is_done:
            self._fail(UpstreamError("bytes came that nobody asked for"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UpstreamError(f"the engine's answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._pool.lost(self)
        if self._has_head and not self._is_done and not self._has_length and exc is None:
            self._is_done = True  # a body that ends with the connection (RFC 9112, 6.3)
            self._wake_up()
        elif not self._is_done:
            is_stale = self.is_used and not self._got_bytes
            kind = StaleError if is_stale else UpstreamError
            self._fail(kind("the engine closed the connection"))

    # --- httptools' callbacks --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_done:
            self._is_unclean = True  # a second answer to one request: never mix it in, never reuse
        self._headers = []
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise httptools.HttpParserError("too many headers")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200
        if self._is_interim or self._head is None or self._is_unclean:
            return
        self._has_head = True
        self._has_length = any(
            name == b"content-length"
            or (name == b"transfer-encoding" and b"chunked" in value.lower())
            for name, value in self._headers
        ) or status in (204, 304)
        self._keeps_alive = self._parser.should_keep_alive()
        if not self._head.done():
            self._head.set_result(Head(status=status, headers=self._headers))

    def on_body(self, body: bytes) -> None:
        if self._is_unclean:
            return
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > BUFFER_BYTES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake_up()

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
            return
        self._is_done = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        self._error = self._error or error
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self._wake_up()
        self.abort()


def _notice_dead_hosts(sock: socket.socket | None) -> None:
    """Make the kernel end a connection whose host went away without a word."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class UpstreamPool:
    """Idle connections by address; the newest is used first."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._addresses: set[tuple[str, int]] = set()

    async def request(self, target: Target, request: bytes, *, is_fresh: bool = False) -> Answer:
        """Send a whole request; return its answer once the head has come.

        The caller limits the time; a cancelled call closes the connection.

        Raises:
            ConnectError, StaleError, UpstreamError: see the module's rules.
        """
        address = (target.host, target.port)
        connection = None if is_fresh else self._take(address)
        if connection is None:
            connection = await self._connect(address)
        try:
            return Answer(connection, await connection.send(request))
        except BaseException:
            connection.abort()
            raise

    def keep_only(self, addresses: set[tuple[str, int]]) -> None:
        """Close what is idle to addresses that left the table; keep nothing to them later."""
        self._addresses = addresses
        for address in [address for address in self._idle if address not in addresses]:
            for connection in self._idle.pop(address):
                connection.abort()

    def close(self) -> None:
        """Close all idle connections."""
        self.keep_only(set())

    def give_back(self, connection: _Connection) -> None:
        """Keep the connection for the next request, if there is room."""
        if connection.address not in self._addresses:
            connection.abort()
            return
        idle = self._idle.setdefault(connection.address, [])
        if len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.abort()

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that was closed."""
        idle = self._idle.get(connection.address)
        if idle and connection in idle:
            idle.remove(connection)

    def _take(self, address: tuple[str, int]) -> _Connection | None:
        idle = self._idle.get(address)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, address: tuple[str, int]) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, address), address[0], address[1]
                )
        except (OSError, TimeoutError) as error:
            raise ConnectError(f"no connection to {address[0]}:{address[1]}") from error
        return connection
