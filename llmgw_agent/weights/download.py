"""One file over HTTP into a staging file: resumed after any kill, verified before it is named.

Rule 1: what is on disk already is asked for with Range; a server that ignores it starts over.
Rule 2: 401, 403 and 404 are final; 416 starts over; 429, 5xx, stalls and short bodies are retried.
Rule 3: a wrong size or hash throws the file away; after a few of these the fetch has failed.
Rule 4: blocks are written in a thread; a killed fetch loses at most the one in memory.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

import httpx

from llmgw_agent.weights.blocking import (
    BLOCK_BYTES,
    Stop,
    in_thread,
    sha256_of,
    telling_full_disk,
)
from llmgw_agent.weights.patience import (
    AgainError,
    Patience,
    explain_request_error,
    judge_status,
    patiently,
)
from llmgw_common.errors import LlmgwError

_RANGE: Final = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What to fetch: where from, where to, and what it must be (size 0 and hash "" are unknown)."""

    url: str
    target: Path
    sha256: str = ""
    size_bytes: int = 0

    @property
    def partial(self) -> Path:
        """Where the bytes lie until they are verified."""
        return self.target.with_name(self.target.name + ".partial")


async def download(
    client: httpx.AsyncClient,
    wanted: Download,
    on_bytes: Callable[[int, int], None],
    patience: Patience,
) -> None:
    """Bring `wanted.target` into being; calls `on_bytes(done, total)`, total 0 while unknown.

    Raises:
        LlmgwError: `weights_unreadable`, with the source's final answer or the last failure;
            `disk_full`.
    """
    best = _size(wanted.partial)

    async def attempt() -> None:
        nonlocal best
        try:
            await _fetch(client, wanted, on_bytes)
            await in_thread(partial(_verify, wanted))
        except AgainError as error:
            have = _size(wanted.partial)
            error.has_progressed = have > best
            best = 0 if error.is_spoiled else max(best, have)
            raise

    wanted.partial.parent.mkdir(parents=True, exist_ok=True)
    await patiently(wanted.url, patience, attempt)
    wanted.partial.rename(wanted.target)


async def _fetch(
    client: httpx.AsyncClient, wanted: Download, on_bytes: Callable[[int, int], None]
) -> None:
    have = _size(wanted.partial)
    if wanted.size_bytes and have >= wanted.size_bytes:
        on_bytes(min(have, wanted.size_bytes), wanted.size_bytes)
        return
    headers = {"accept-encoding": "identity"}
    if have:
        headers["range"] = f"bytes={have}-"
    try:
        async with client.stream("GET", wanted.url, headers=headers) as answer:
            if _is_complete(answer, wanted, have):
                return
            have = _begin(answer, wanted, have)
            await _write_body(answer, wanted, have, on_bytes)
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise explain_request_error(error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_complete(answer: httpx.Response, wanted: Download, have: int) -> bool:
    """Say whether a 416 means that all bytes of a file of unknown size are here."""
    if answer.status_code != httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        return False
    _, total = _content_range(answer)
    if have and total == have and not wanted.size_bytes:
        return True
    wanted.partial.unlink(missing_ok=True)
    raise AgainError("the source does not know this range (416); starting over")


def _content_range(answer: httpx.Response) -> tuple[int | None, int | None]:
    """Return the first byte and the whole size of a Content-Range (RFC 9110, 14.4), if told."""
    match = _RANGE.fullmatch(answer.headers.get("content-range", ""))
    if not match:
        return None, None
    begin, total = match[1], match[2]
    return int(begin) if begin else None, None if total == "*" else int(total)


def _begin(answer: httpx.Response, wanted: Download, have: int) -> int:
    """Return how many of the bytes on disk count for this answer."""
    judge_status(answer)
    coding = answer.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise AgainError(f"the source packs the body as {coding}, though it was asked not to")
    if answer.status_code != httpx.codes.PARTIAL_CONTENT:
        return 0
    begin, total = _content_range(answer)
    if begin != have:
        wanted.partial.unlink(missing_ok=True)
        raise AgainError(f"asked for bytes from {have}, got them from {begin}")
    if wanted.size_bytes and total not in (None, wanted.size_bytes):
        wanted.partial.unlink(missing_ok=True)
        raise AgainError(f"the source's file has {total} bytes instead of {wanted.size_bytes}")
    return have


async def _write_body(
    answer: httpx.Response, wanted: Download, have: int, on_bytes: Callable[[int, int], None]
) -> None:
    announced = answer.headers.get("content-length", "")
    total = wanted.size_bytes or (have + int(announced) if announced.isdecimal() else 0)
    done = came = have
    pending = bytearray()
    with wanted.partial.open("r+b" if have else "wb", buffering=0) as out:
        out.seek(have)
        try:
            async for block in answer.aiter_raw():
                came += len(block)
                if total and came > total:
                    pending.clear()
                    raise AgainError(f"more than the announced {total} bytes came")
                pending += block
                if len(pending) >= BLOCK_BYTES:
                    full, pending = pending, bytearray()
                    await in_thread(partial(_write, out, full, wanted, total - done))
                    done += len(full)
                    on_bytes(done, total)
        except BaseException:  # cut or cancelled: what came is kept, if it can be
            with suppress(OSError, LlmgwError):
                _write(out, pending, wanted, 0, Stop())
            raise
        await in_thread(partial(_write, out, pending, wanted, total - done))
    on_bytes(came, total)
    if total and came < total:
        raise AgainError(f"the body ended after {came} of {total} bytes")


def _write(
    out: IO[bytes], block: bytearray, wanted: Download, left_bytes: int, _stop: Stop
) -> None:
    with telling_full_disk(wanted.partial.parent, max(left_bytes, len(block))):
        view = memoryview(block)
        while view:
            view = view[out.write(view) :]


def _verify(wanted: Download, stop: Stop) -> None:
    size = wanted.partial.stat().st_size
    if wanted.size_bytes and size != wanted.size_bytes:
        wanted.partial.unlink()
        text = f"{size} bytes instead of {wanted.size_bytes}; thrown away"
        raise AgainError(text, is_spoiled=True)
    if wanted.sha256 and sha256_of(wanted.partial, stop) != wanted.sha256:
        wanted.partial.unlink()
        text = "the file's hash is not the announced one; thrown away"
        raise AgainError(text, is_spoiled=True)
