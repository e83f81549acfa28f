"""Ends a shard's processes and proves it.

SIGTERM to everything that carries the mark, `grace_s`, SIGKILL to what is left, wherever it moved
to. "Stopped" means: no process with the mark is left, and the port is free. Otherwise the shard has
failed to stop, with the pids, and what it holds is not given to others.
"""

import asyncio
import signal
from dataclasses import dataclass
from typing import Final

from llmgw_agent.supervisor import ports, processes
from llmgw_common.clock import Clock

_POLL_S: Final = 0.05
#: After SIGKILL nothing runs on; what is still there after this is stuck in the kernel.
_KILL_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """How it ended.

    Attributes:
        left: pids that are still there.
        needed: what it took: nothing, SIGTERM or SIGKILL.
        is_port_free: the engine's port can be bound again.
    """

    left: tuple[int, ...]
    needed: str
    is_port_free: bool

    @property
    def is_proven(self) -> bool:
        """Nothing is left of it."""
        return not self.left and self.is_port_free


async def end_processes(
    shard_id: str, *, grace_s: float, host: str, port: int, clock: Clock
) -> Stopped:
    """End every process of the shard; returns when they are gone or cannot be ended."""
    needed = "nothing"
    left = await asyncio.to_thread(processes.of_shard, shard_id)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_WAIT_S)):
        if not left:
            break
        needed = number.name
        left = await _signal_until_gone(shard_id, number, wait_s, clock)
    is_port_free = not port or await _port_freed(host, port, clock)
    return Stopped(left=tuple(left), needed=needed, is_port_free=is_port_free)


async def _signal_until_gone(
    shard_id: str, number: signal.Signals, wait_s: float, clock: Clock
) -> list[int]:
    deadline_s = clock.monotonic_s() + wait_s
    told: set[int] = set()
    while True:
        left = await asyncio.to_thread(processes.of_shard, shard_id)
        for pid in left:
            if pid not in told or number is signal.SIGKILL:
                processes.send(pid, number, shard_id)
                told.add(pid)
        if not left or clock.monotonic_s() >= deadline_s:
            return left
        await asyncio.sleep(_POLL_S)


async def _port_freed(host: str, port: int, clock: Clock) -> bool:
    deadline_s = clock.monotonic_s() + 2.0
    while not ports.is_free(host, port):
        if clock.monotonic_s() >= deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True
