"""What /proc knows: who a process is, who carries a shard's mark, and how to wait for an end.

Rule: a process is named by pid *and* start time *and* boot *and* mark. A pid alone may be a
stranger's by now, and a stranger is never signalled.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MARK_SHARD: Final = "LLMGW_SHARD_ID"
MARK_EPOCH: Final = "LLMGW_EPOCH"
#: Which agent: several may live on one machine (simulated nodes).
MARK_AGENT: Final = "LLMGW_AGENT"


class Mark(NamedTuple):
    """What an engine process carries in its environment."""

    shard_id: str
    epoch: str
    agent: str


_PROC: Final = Path("/proc")


def start_time(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot; None if there is no such one.

    A zombie counts as gone: it runs nothing and holds no memory.
    Source: proc_pid_stat(5), fields 3 (state) and 22 (starttime).
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def mark_of(pid: int) -> Mark | None:
    """Return the mark that the process was started with, None if it has none."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    found = {
        name.decode(): value.decode(errors="replace")
        for name, _, value in (item.partition(b"=") for item in block.split(b"\0"))
        if name.startswith(b"LLMGW_")
    }
    if MARK_SHARD not in found:
        return None
    return Mark(found[MARK_SHARD], found.get(MARK_EPOCH, ""), found.get(MARK_AGENT, ""))


def is_it(pid: int, started: int, shard_id: str, epoch: int) -> bool:
    """Say whether `pid` is the very process that was recorded."""
    mark = mark_of(pid)
    return (
        mark is not None
        and start_time(pid) == started
        and (mark.shard_id, mark.epoch) == (shard_id, str(epoch))
    )


def marked() -> Iterator[tuple[int, Mark]]:
    """Yield every live process that carries a mark."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            mark = mark_of(pid)
            if mark and start_time(pid) is not None:
                yield pid, mark


def of_shard(shard_id: str, epoch: int | None = None) -> list[int]:
    """Return the live processes of a shard, whatever process group they moved to."""
    return [
        pid
        for pid, mark in marked()
        if mark.shard_id == shard_id and (epoch is None or mark.epoch == str(epoch))
    ]


def send(pid: int, number: signal.Signals, shard_id: str) -> None:
    """Signal the process if it still carries the shard's mark; through a pidfd, so no race."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            mark = mark_of(pid)
            if mark and mark.shard_id == shard_id:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


async def wait_gone(pid: int, started: int) -> None:
    """Return when that very process has ended, child or not."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if start_time(pid) != started:
            return
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
