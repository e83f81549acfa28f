"""Puts the node's facts together, and keeps them fresh without ever waiting long for a driver."""

import asyncio
import json
import platform
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from llmgw_agent.inventory.simulate import simulated_gpus
from llmgw_agent.settings import AgentSettings
from llmgw_common.clock import Clock
from llmgw_common.protocol.facts import GpuFacts, NodeFacts

log = structlog.get_logger(__name__)

#: A driver that does not answer within this is hanging (design: fault H2).
NVML_TIMEOUT_S = 20.0
#: GPUs are read again this often.
REFRESH_S: Final = 10.0

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what changes with every boot of this machine, empty where the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


@dataclass(frozen=True, slots=True)
class _Gpus:
    facts: tuple[GpuFacts, ...]
    driver: str
    note: str


class Inventory:
    """The node's facts; GPUs are read in a child process and cached."""

    def __init__(
        self, settings: AgentSettings, node_name: str, addresses: tuple[str, ...], clock: Clock
    ) -> None:
        self._settings = settings
        self._node_name = node_name
        self._addresses = addresses
        self._clock = clock
        self._gpus: _Gpus | None = None
        self._read_at_s = 0.0
        self._reader = _GpuReader()
        self._refreshing: asyncio.Task[None] | None = None

    async def node_facts(self) -> NodeFacts:
        """Return the facts as of now; waits for the GPUs only the first time."""
        if self._gpus is None:
            await self._refresh()
        elif self._clock.monotonic_s() - self._read_at_s >= REFRESH_S and not self._refreshing:
            self._refreshing = asyncio.create_task(self._refresh(), name="gpu-refresh")
            self._refreshing.add_done_callback(self._refreshed)
        gpus = self._gpus or _Gpus((), "", "")
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(str(self._settings.data_dir))
        low, high = self._settings.port_band
        return NodeFacts(
            host=socket.gethostname(),
            addresses=self._addresses,
            boot_id=boot_id(),
            os=platform.system().lower(),
            arch=platform.machine(),
            cpu_count=psutil.cpu_count() or 1,
            memory_total_bytes=memory.total,
            memory_free_bytes=memory.available,
            disk_total_bytes=disk.total,
            disk_free_bytes=disk.free,
            gpus=gpus.facts,
            gpu_note=gpus.note,
            driver=gpus.driver,
            labels=self._settings.labels,
            port_low=low,
            port_high=high,
            engine_kinds=tuple(self._settings.allow.engine_kinds),
            is_simulated=self._settings.inventory.simulate is not None,
        )

    async def close(self) -> None:
        """End a refresh that is under way."""
        if self._refreshing:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled() and task.exception():
            log.warning("GPUs could not be read", error=repr(task.exception()))

    async def _refresh(self) -> None:
        simulate, nvml = self._settings.inventory.simulate, self._settings.inventory.nvml
        if simulate:
            self._gpus = _Gpus(simulated_gpus(simulate, self._node_name), "simulated", "simulated")
        elif nvml == "off":
            self._gpus = _Gpus((), "", "NVML is switched off")
        else:
            before = self._gpus
            self._gpus = await self._reader.read(before)
            if before is None:
                log.info("inventory", gpus=len(self._gpus.facts), note=self._gpus.note)
        self._read_at_s = self._clock.monotonic_s()


class _GpuReader:
    """Reads GPUs in a child process; one that hangs in the driver is waited for, not doubled."""

    def __init__(self) -> None:
        self._stuck: asyncio.subprocess.Process | None = None

    async def read(self, before: _Gpus | None) -> _Gpus:
        if self._stuck is not None and self._stuck.returncode is None:
            return _unknown(before, "an earlier call of the driver still hangs")
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "llmgw_agent.inventory.nvml",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._stuck = child
        try:
            async with asyncio.timeout(NVML_TIMEOUT_S):
                output, _ = await child.communicate()
            return _parse(json.loads(output), before)
        except TimeoutError:
            return _unknown(before, f"the driver did not answer within {NVML_TIMEOUT_S:.0f} s")
        except ValueError:
            return _unknown(before, f"the GPU reader ended with exit code {child.returncode}")
        finally:
            if child.returncode is None:
                child.kill()
                with suppress(TimeoutError):  # one in the kernel's hands cannot be ended
                    async with asyncio.timeout(1.0):
                        await child.wait()


def _parse(found: dict[str, Any], before: _Gpus | None) -> _Gpus:
    """Return what was read; a card that was there and is gone stays listed, as unhealthy."""
    facts = [GpuFacts.model_validate(gpu) for gpu in found["gpus"]]
    seen = {gpu.uuid for gpu in facts}
    lost = {"is_healthy": False, "health_text": "the driver no longer lists it"}
    known = before.facts if before else ()
    facts += [gpu.model_copy(update=lost) for gpu in known if gpu.uuid not in seen]
    return _Gpus(tuple(facts), found["driver"], found["note"])


def _unknown(before: _Gpus | None, note: str) -> _Gpus:
    """Keep what was known, but place nothing new there."""
    known = before.facts if before else ()
    facts = tuple(
        gpu.model_copy(update={"is_healthy": False, "health_text": note}) for gpu in known
    )
    return replace(before, facts=facts, note=note) if before else _Gpus((), "", note)
