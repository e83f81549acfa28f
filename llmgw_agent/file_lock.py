"""A lock between processes that dies with its holder: one file, held by flock.

Rule 1: nobody waits inside a thread: a waiter that is cancelled leaves nothing behind.
Rule 2: the file stays; to unlink it would let two holders lock two files of one name.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

#: A waiter looks again this often.
POLL_S: Final = 0.1


@asynccontextmanager
async def file_lock(path: Path, tell_waiting: Callable[[], None]) -> AsyncIterator[int]:
    """Hold the lock of `path`, as an open file; waits, without a limit, for another holder to end.

    A child process that inherits the file holds the lock, too, until both have ended.

    Args:
        path: the lock file, made if it is not there (mode 0600).
        tell_waiting: called once, if another process or task holds it.

    Raises:
        OSError: the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_told = False
        while not try_lock(descriptor):
            if not is_told:
                tell_waiting()
                is_told = True
            await asyncio.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file if nobody else has it; closing the file gives it back."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
