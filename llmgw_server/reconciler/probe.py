"""Asks the engines on nodes that went silent: a dead control connection is not a dead engine.

While an engine answers, its replica keeps its requests and is not replaced (design: fault C10).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from llmgw_common.ids import ReplicaId
from llmgw_server.fleet.model import FleetView, NodeState, Replica

PROBE_INTERVAL_S: Final = 3.0
PROBE_TIMEOUT_S: Final = 2.0
#: Engines asked at once.
PROBES_MAX: Final = 32


class Prober:
    """Keeps `answers` up to date for replicas on suspect and lost nodes, and for no others."""

    def __init__(self, fleet: Callable[[], FleetView], wake: Callable[[], None]) -> None:
        self._fleet = fleet
        self._wake = wake
        self._answers: dict[ReplicaId, bool] = {}

    @property
    def answers(self) -> Mapping[ReplicaId, bool]:
        """Whether each probed replica's engine answered the last time."""
        return self._answers

    async def run(self) -> None:
        """Probe until cancelled."""
        limit = asyncio.Semaphore(PROBES_MAX)
        async with httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as client:
            while True:
                targets = _on_silent_nodes(self._fleet())
                found = await asyncio.gather(*(_ask(client, limit, r) for r in targets))
                answers = {r.replica_id: ok for r, ok in zip(targets, found, strict=True)}
                if answers != self._answers:
                    self._answers = answers
                    self._wake()
                await asyncio.sleep(PROBE_INTERVAL_S)


def _on_silent_nodes(fleet: FleetView) -> list[Replica]:
    silent = {
        node.node_id
        for node in fleet.nodes.values()
        if node.state in (NodeState.SUSPECT, NodeState.LOST)
    }
    return [
        replica
        for replica in fleet.replicas.values()
        if not replica.is_terminal
        and replica.endpoint
        and any(shard.node_id in silent for shard in replica.shards)
    ]


async def _ask(client: httpx.AsyncClient, limit: asyncio.Semaphore, replica: Replica) -> bool:
    async with limit:
        try:
            answer = await client.get(f"{replica.endpoint}/health")
        except httpx.HTTPError:
            return False
        return answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR
