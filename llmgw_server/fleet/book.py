"""The bookings of one planning pass: GPUs and ports, so that one pass never promises a thing twice.

A GPU or a port is free only if no shard that may still run holds it; a shard that could not be
stopped holds its GPUs, and so does a shard on a lost node, until its agent says otherwise.
"""

from collections.abc import Iterable

from llmgw_common.ids import NodeId
from llmgw_server.fleet.model import FleetView, Gpu, Node, Shard


class FleetBook:
    """What is free on each node, as of a view and the placements already booked on it."""

    def __init__(self, fleet: FleetView) -> None:
        self._gpus: dict[NodeId, set[str]] = {}
        self._ports: dict[NodeId, set[int]] = {}
        self._shards: dict[NodeId, int] = {}
        self._models: dict[tuple[NodeId, str], int] = {}
        for replica in fleet.replicas.values():
            self._hold(replica.model, replica.shards)
        self._hold("", fleet.unclaimed)

    def _hold(self, model: str, shards: Iterable[Shard]) -> None:
        for shard in shards:
            # The port of an ended shard rests until its replica is forgotten: old connections may
            # still be on their way to it.
            self._ports.setdefault(shard.node_id, set()).add(shard.port)
            if shard.holds_resources:
                self._take(shard.node_id, model, shard.gpu_uuids)

    def _take(self, node_id: NodeId, model: str, gpu_uuids: tuple[str, ...]) -> None:
        self._gpus.setdefault(node_id, set()).update(gpu_uuids)
        self._shards[node_id] = self._shards.get(node_id, 0) + 1
        self._models[node_id, model] = self._models.get((node_id, model), 0) + 1

    def free_gpus(self, node: Node) -> tuple[Gpu, ...]:
        """Return the node's healthy GPUs that nobody holds, by index."""
        held = self._gpus.get(node.node_id, set())
        free = (gpu for gpu in node.gpus if gpu.is_healthy and gpu.uuid not in held)
        return tuple(sorted(free, key=lambda gpu: (gpu.index, gpu.uuid)))

    def free_port(self, node: Node) -> int | None:
        """Return the lowest port of the node's band that nobody holds, or None."""
        held = self._ports.get(node.node_id, set())
        return next((p for p in range(node.port_low, node.port_high + 1) if p not in held), None)

    def shards_on(self, node: Node) -> int:
        """Return how many shards hold something on the node."""
        return self._shards.get(node.node_id, 0)

    def shards_of_model_on(self, model: str, node: Node) -> int:
        """Return how many of them belong to `model`."""
        return self._models.get((node.node_id, model), 0)

    def book(self, node: Node, model: str, gpu_uuids: tuple[str, ...], port: int) -> None:
        """Promise GPUs and a port of the node to a shard of `model`."""
        self._take(node.node_id, model, gpu_uuids)
        self._ports.setdefault(node.node_id, set()).add(port)
