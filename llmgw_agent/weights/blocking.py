"""Disk work in threads, which a cancelled fetch never leaves running behind its back.

Rule 1: a cancel waits for the thread's end: the next fetch finds nobody writing its files.
Rule 2: long work looks at `Stop` between blocks, so that this end is near.
Rule 3: a full disk is its own error, raised with what is free there.
"""

import asyncio
import errno
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from llmgw_common.errors import LlmgwError
from llmgw_common.units import format_bytes

T = TypeVar("T")

#: Read, hashed or written at once; a killed fetch loses at most one of these.
BLOCK_BYTES: Final = 1 << 20


class StoppedError(Exception):
    """Raised inside a thread whose caller was cancelled; nobody sees it."""


class Stop:
    """Says to a thread that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """End the work at its next block."""
        self._event.set()

    def check(self) -> None:
        """Raise `StoppedError` if the work is to end."""
        if self._event.is_set():
            raise StoppedError


async def in_thread(work: Callable[[Stop], T]) -> T:
    """Return what `work(stop)` returns; a cancel sets `stop` and waits for the thread to end."""
    stop = Stop()
    doing = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        stop.set()
        while not doing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({doing})
        doing.exception()  # seen: the cancel is what counts
        raise


@contextmanager
def telling_full_disk(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turn the system's "no space" into `disk_full`.

    Args:
        folder: where was written.
        needed_bytes: what the write still wants.

    Raises:
        LlmgwError: `disk_full`, with the facts `needed` and `free` in bytes.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full(folder, needed_bytes, shutil.disk_usage(folder).free) from error


def disk_full(folder: Path, needed_bytes: int, free: int) -> LlmgwError:
    """Return the error of a folder whose disk wants `needed_bytes` and has `free`."""
    text = (
        f"the disk of {folder} is too full: {format_bytes(needed_bytes)} needed, "
        f"{format_bytes(free)} free"
    )
    return LlmgwError("disk_full", text, needed=needed_bytes, free=free)


def sha256_of(path: Path, stop: Stop, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Return the SHA-256 of a file as hex; calls `on_bytes(done)` after each block."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            stop.check()
            digest.update(block)
            done += len(block)
            on_bytes(done)
    return digest.hexdigest()
