"""Made-up GPUs: "8xH200" gives a simulated node for tests, demos and rehearsals."""

import hashlib
from typing import Final

from llmgw_common.protocol.facts import GpuFacts

_GIB: Final = 1 << 30

#: Memory of known cards, GiB (vendors' data sheets); others get 80.
_MEMORY_GIB: Final = {
    "H200": 141,
    "H100": 80,
    "B200": 180,
    "A100": 80,
    "A100-40GB": 40,
    "A100-80GB": 80,
    "L40S": 48,
    "L4": 24,
    "T4": 16,
    "RTX4090": 24,
}


def simulated_gpus(spec: str, node_name: str) -> tuple[GpuFacts, ...]:
    """Return the GPUs of `spec`; the same node name has the same UUIDs each time."""
    count, _, name = spec.partition("x")
    memory_bytes = _MEMORY_GIB.get(name, 80) * _GIB
    return tuple(
        GpuFacts(
            uuid=f"SIM-{hashlib.sha256(f'{node_name}/{i}'.encode()).hexdigest()[:16]}",
            index=i,
            name=name,
            memory_total_bytes=memory_bytes,
            memory_free_bytes=memory_bytes,
        )
        for i in range(int(count))
    )
