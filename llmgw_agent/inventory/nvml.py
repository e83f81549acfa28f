"""`python -m llmgw_agent.inventory.nvml`: the GPUs as one JSON line, read through NVML.

Runs as a child process with a time limit. Every field alone may be missing: a driver that does not
know one must not hide the others. No library or no driver: {"gpus": [], "note": "..."}.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def read_gpus() -> dict[str, Any]:
    """Return {"gpus": [...], "driver": text, "note": text}; never raises for a driver's failure."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpus": [], "driver": "", "note": f"no GPUs by NVML: {error}"}
    try:
        count = _or_none(pynvml.nvmlDeviceGetCount) or 0
        gpus = [gpu for index in range(count) if (gpu := _read_gpu(index))]
        driver = _or_none(pynvml.nvmlSystemGetDriverVersion) or ""
        return {"gpus": gpus, "driver": driver, "note": ""}
    finally:
        _or_none(pynvml.nvmlShutdown)


def _read_gpu(index: int) -> dict[str, Any] | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError:
        return None  # fallen off the bus: without a UUID it has no name to be placed by
    memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle)
    usage = _or_none(pynvml.nvmlDeviceGetUtilizationRates, handle)
    bus = _or_none(pynvml.nvmlDeviceGetPciInfo, handle)
    return {
        "uuid": uuid,
        "index": index,
        "name": _or_none(pynvml.nvmlDeviceGetName, handle) or "",
        "memory_total_bytes": memory.total if memory else None,
        "memory_free_bytes": memory.free if memory else None,
        "temperature_celsius": _or_none(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "utilization_percent": usage.gpu if usage else None,
        "pci_bus": bus.busId if bus else "",
    }


def _or_none(call: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - NVML's own types
    try:
        return call(*args)
    except (pynvml.NVMLError, AttributeError):
        return None


if __name__ == "__main__":
    json.dump(read_gpus(), sys.stdout)
