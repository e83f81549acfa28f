"""An engine whose every byte and delay is scripted: a plain asyncio server on loopback."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Exchange:
    """One request as it came, and the writer to answer it."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    #: How many requests came on this connection before.
    before: int

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            found, _, value = line.partition(":")
            if found.strip().lower() == name:
                return value.strip()
        return None

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    async def send(self, *parts: bytes, gap_s: float = 0.0) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            if gap_s:
                await asyncio.sleep(gap_s)

    def cut(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class ScriptedEngine:
    script: Script
    port: int = 0
    seen: list[Exchange] = field(default_factory=list)
    #: Set when a peer closed its connection while a script ran.
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> "ScriptedEngine":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        count = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                exchange = Exchange(head, b"", writer, reader, count)
                length = int(exchange.header("content-length") or 0)
                exchange.body = await reader.readexactly(length)
                self.seen.append(exchange)
                await self._run(exchange)
                count += 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _run(self, exchange: Exchange) -> None:
        doing = asyncio.ensure_future(self.script(exchange))
        gone = asyncio.ensure_future(exchange.reader.read(1))
        try:
            await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done() and not isinstance(doing.exception(), ConnectionError):
                doing.result()
                return
            self.left.set()
            raise ConnectionError("the gateway left")
        finally:
            for task in (doing, gone):
                task.cancel()
            await asyncio.gather(doing, gone, return_exceptions=True)


def whole(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(payload: dict[str, Any], end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + end


def token(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"


async def answers_ok(exchange: Exchange) -> None:
    body = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    await exchange.send(whole(json.dumps(body).encode()))


async def streams_ok(exchange: Exchange) -> None:
    await exchange.send(
        STREAM_HEAD, chunk(token("a")), chunk(token("b")), chunk(USAGE), chunk(DONE), LAST_CHUNK
    )
