"""Reads GPUs in a child process, and says what became of those that it knew before.

Rule 1: a driver that hangs costs one child, never two: while one is stuck, none is started.
Rule 2: a card that was there and is gone stays listed as unhealthy, with the reason.
Rule 3: whatever goes wrong is said in a note; no failure of a driver is an error of the node.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from llmgw_common.protocol.facts import GpuFacts

#: A driver that does not answer within this is hanging (design: fault H2).
NVML_TIMEOUT_S: Final = 20.0
#: A killed child that is still there after this is in the kernel's hands.
_KILL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Gpus:
    """What is known of the node's GPUs."""

    facts: tuple[GpuFacts, ...]
    driver: str
    note: str


class Child(Protocol):
    """As much of `asyncio.subprocess.Process` as is used here."""

    @property
    def returncode(self) -> int | None:
        """Exit code, None while it runs."""
        ...

    async def communicate(self) -> tuple[bytes, bytes]:
        """Return all that it wrote, when it has ended."""
        ...

    async def wait(self) -> int:
        """Return its exit code, when it has ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


async def start_child() -> Child:
    """Start the program that asks the driver once."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "llmgw_agent.inventory.nvml",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


class GpuReader:
    """See the module's rules.

    Args:
        timeout_s: a driver that does not answer within this is hanging.
        start: starts a child.
    """

    def __init__(
        self,
        timeout_s: float = NVML_TIMEOUT_S,
        start: Callable[[], Awaitable[Child]] = start_child,
    ) -> None:
        self._timeout_s = timeout_s
        self._start = start
        self._child: Child | None = None

    async def read(self, before: Gpus | None) -> Gpus:
        """Return what the driver says now, and of cards known before what became of them."""
        if self._child is not None and self._child.returncode is None:
            return _unknown(before, "an earlier call of the driver still hangs")
        try:
            child = self._child = await self._start()
        except OSError as error:
            return _unknown(before, f"the GPU reader cannot be started: {error.strerror}")
        try:
            async with asyncio.timeout(self._timeout_s):
                output, _ = await child.communicate()
            return _parse(json.loads(output), before)
        except TimeoutError:
            return _unknown(before, f"the driver did not answer within {self._timeout_s:g} s")
        except (ValueError, KeyError, TypeError, AttributeError):
            return _unknown(before, f"the GPU reader ended with exit code {child.returncode}")
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    child.kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KILL_S):
                        await child.wait()


def _parse(found: dict[str, Any], before: Gpus | None) -> Gpus:
    facts = [GpuFacts.model_validate(gpu) for gpu in found["gpus"]]
    seen = {gpu.uuid for gpu in facts}
    lost: dict[str, str] = dict(found["lost"])
    note = str(found["note"])
    for gpu in before.facts if before else ():
        if gpu.uuid in seen:
            continue
        reason = lost.pop(str(gpu.index), "")
        text = f"the driver cannot reach it: {reason}" if reason else note
        facts.append(_unhealthy(gpu, text or "the driver no longer lists it"))
    nameless = "; ".join(f"card {index} cannot be reached: {lost[index]}" for index in lost)
    driver = str(found["driver"]) or (before.driver if before else "")
    return Gpus(tuple(facts), driver, note or nameless)


def _unknown(before: Gpus | None, note: str) -> Gpus:
    """Keep what was known, but place nothing new there."""
    if before is None:
        return Gpus((), "", note)
    return Gpus(tuple(_unhealthy(gpu, note) for gpu in before.facts), before.driver, note)


def _unhealthy(gpu: GpuFacts, text: str) -> GpuFacts:
    return gpu.model_copy(update={"is_healthy": False, "health_text": text})
