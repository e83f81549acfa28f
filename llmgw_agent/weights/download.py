"""One file over HTTP into a staging file: resumed after any kill, verified before it is named.

Rule 1: what is on disk already is asked for with Range; a server that ignores it starts over.
Rule 2: 401, 403 and 404 are final; 416 starts over; 429, 5xx, stalls and short bodies are retried.
Rule 3: a wrong hash throws the file away; after `TRIES` of it the fetch has failed.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import structlog

from llmgw_common.errors import LlmgwError
from llmgw_common.mint import jitter

log = structlog.get_logger(__name__)

TRIES: Final = 6
#: The first pause between tries; it doubles, up to 30 s.
BACKOFF_FIRST_S = 0.5
#: A connection that moves no byte for this long has stalled.
STALL_S: Final = 30.0

_FINAL: Final = {
    401: "the source wants credentials (401)",
    403: "the source refuses access, perhaps the model is gated (403)",
    404: "the source has no such file (404)",
    410: "the file is gone from the source (410)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What to fetch: where from, where to, and what it must be (size 0 and hash "" are unknown)."""

    url: str
    target: Path
    sha256: str = ""
    size_bytes: int = 0


class _AgainError(Exception):
    """Try again after a while; the text says why."""


async def download(
    client: httpx.AsyncClient, wanted: Download, on_bytes: Callable[[int, int], None]
) -> None:
    """Bring `wanted.target` into being; calls `on_bytes(done, total)`, total 0 while unknown.

    Raises:
        LlmgwError: `weights_unreadable`, with the source's final answer or the last failure.
    """
    partial = wanted.target.with_name(wanted.target.name + ".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    last = ""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(min(BACKOFF_FIRST_S * 2**attempt, 30.0) * jitter(0.5, 1.0))
        try:
            await _fetch(client, wanted, partial, on_bytes)
            await asyncio.to_thread(_verify, wanted, partial)
        except (_AgainError, httpx.TransportError) as error:
            last = str(error) or type(error).__name__
            log.warning("fetch interrupted", url=wanted.url, attempt=attempt + 1, error=last)
        else:
            partial.rename(wanted.target)
            return
    raise LlmgwError("weights_unreadable", f"{wanted.url}: gave up after {TRIES} tries: {last}")


async def _fetch(
    client: httpx.AsyncClient, wanted: Download, partial: Path, on_bytes: Callable[[int, int], None]
) -> None:
    have = _size(partial)
    if wanted.size_bytes and have == wanted.size_bytes:
        return
    headers = {"accept-encoding": "identity"}
    if have:
        headers["range"] = f"bytes={have}-"
    async with client.stream("GET", wanted.url, headers=headers) as answer:
        have = _judge(answer, wanted, partial, have)
        total = wanted.size_bytes or have + int(answer.headers.get("content-length", 0))
        done = have
        with partial.open("ab" if have else "wb") as out:
            async for block in answer.aiter_raw():
                out.write(block)
                done += len(block)
                if total and done > total:
                    raise _AgainError(f"{done} bytes came, {total} were announced")
                on_bytes(done, total)
        if total and done < total:
            raise _AgainError(f"the body ended after {done} of {total} bytes")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _judge(answer: httpx.Response, wanted: Download, partial: Path, have: int) -> int:
    """Return how many of the bytes on disk count for this answer."""
    status = answer.status_code
    if status in _FINAL:
        raise LlmgwError("weights_unreadable", f"{wanted.url}: {_FINAL[status]}")
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        partial.unlink(missing_ok=True)
        raise _AgainError("the source does not know this range (416); starting over")
    if status == httpx.codes.PARTIAL_CONTENT:
        begins = answer.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
        if begins != str(have):
            partial.unlink(missing_ok=True)
            raise _AgainError(f"asked for bytes from {have}, got them from {begins or 'nowhere'}")
        return have
    if status == httpx.codes.OK:
        return 0
    raise _AgainError(f"the source answered {status}")


def _verify(wanted: Download, partial: Path) -> None:
    size = partial.stat().st_size
    if wanted.size_bytes and size != wanted.size_bytes:
        partial.unlink()
        raise _AgainError(f"{size} bytes instead of {wanted.size_bytes}")
    if wanted.sha256 and sha256_of(partial) != wanted.sha256:
        partial.unlink()
        raise _AgainError("the file's hash is not the announced one; thrown away")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hex; reads it whole (call it in a thread)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
