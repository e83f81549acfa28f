"""Puts the node's facts together, and keeps them fresh without ever waiting long for a driver."""

import asyncio
import platform
import socket
from pathlib import Path
from typing import Final

import psutil
import structlog

from llmgw_agent.inventory.gpu_reader import NVML_TIMEOUT_S, GpuReader, Gpus
from llmgw_agent.inventory.simulate import simulated_gpus
from llmgw_agent.settings import AgentSettings
from llmgw_common.clock import Clock
from llmgw_common.protocol.facts import NodeFacts

log = structlog.get_logger(__name__)

#: GPUs are read again this often.
REFRESH_S: Final = 10.0

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what changes with every boot of this machine: its boot id, or else its boot time."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(int(psutil.boot_time()))


class Inventory:
    """The node's facts; GPUs are read in a child process and cached."""

    def __init__(
        self,
        settings: AgentSettings,
        node_name: str,
        addresses: tuple[str, ...],
        clock: Clock,
        nvml_timeout_s: float = NVML_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._node_name = node_name
        self._addresses = addresses
        self._clock = clock
        self._gpus: Gpus | None = None
        self._read_at_s = 0.0
        self._reader = GpuReader(nvml_timeout_s)
        self._refreshing: asyncio.Task[None] | None = None

    async def node_facts(self) -> NodeFacts:
        """Return the facts as of now; waits for the GPUs only the first time."""
        is_old = self._clock.monotonic_s() - self._read_at_s >= REFRESH_S
        if not self._refreshing and (self._gpus is None or is_old):
            self._refreshing = asyncio.create_task(self._refresh(), name="gpu-refresh")
            self._refreshing.add_done_callback(self._refreshed)
        if self._gpus is None and self._refreshing:
            await asyncio.wait({self._refreshing})
        gpus = self._gpus or Gpus((), "", "")
        memory = psutil.virtual_memory()
        disk_total_bytes, disk_free_bytes = await asyncio.to_thread(
            _disk_usage, self._settings.data_dir
        )
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
            disk_total_bytes=disk_total_bytes,
            disk_free_bytes=disk_free_bytes,
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
            self._gpus = Gpus(simulated_gpus(simulate, self._node_name), "simulated", "simulated")
        elif nvml == "off":
            self._gpus = Gpus((), "", "NVML is switched off")
        else:
            before = self._gpus
            self._gpus = await self._reader.read(before)
            if before is None:
                log.info("inventory", gpus=len(self._gpus.facts), note=self._gpus.note)
        self._read_at_s = self._clock.monotonic_s()


def _disk_usage(path: Path) -> tuple[int, int]:
    """Return the total and free bytes of the disk on which `path` lies or will lie."""
    usage = psutil.disk_usage(str(_disk_of(path)))
    return usage.total, usage.free


def _disk_of(path: Path) -> Path:
    """Return the nearest folder above `path` that exists; a leading ~ is the home folder."""
    path = path.expanduser().absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
