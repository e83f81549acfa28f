"""`python -m llmgw_agent.inventory.nvml`: the GPUs as one JSON line, read through NVML.

Runs as a child process with a time limit. Every field alone may be missing: a driver that does not
know one must not hide the others. No library or no driver: {"gpus": [], "note": "..."}. A card
that does not even tell its UUID has no name to be placed by; `lost` says why, by index.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def read_gpus() -> dict[str, Any]:
    """Return the facts; never raises for a driver's failure.

    The keys are gpus (list), lost (index as text to reason), driver (text) and note (text).
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpus": [], "lost": {}, "driver": "", "note": f"no GPUs by NVML: {error}"}
    try:
        gpus, lost = [], {}
        for index in range(_or_none(pynvml.nvmlDeviceGetCount) or 0):
            try:
                gpus.append(_read_gpu(index))
            except pynvml.NVMLError as error:  # fallen off the bus
                lost[str(index)] = str(error)
        driver = _or_none(pynvml.nvmlSystemGetDriverVersion) or ""
        return {"gpus": gpus, "lost": lost, "driver": driver, "note": ""}
    finally:
        _or_none(pynvml.nvmlShutdown)


def _read_gpu(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
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
