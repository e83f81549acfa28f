"""What the admin API needs of the rest of the server; the composition root fills it in."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from llmgw_common.clock import Clock
from llmgw_common.ids import NodeId, ReplicaId, ShardId
from llmgw_server.access.enroll import Enrollment
from llmgw_server.access.keys import ApiKeys
from llmgw_server.catalog.revisions import CatalogRevisions
from llmgw_server.events import EventBus
from llmgw_server.fleet.model import FleetView
from llmgw_server.planner.explain import Explanation
from llmgw_server.planner.plan import Plan
from llmgw_server.planner.policy import Demand

#: (node, shard, lines, follow) to the lines of its log.
TailLogs = Callable[[NodeId, ShardId, int, bool], AsyncIterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """The server, as the admin API sees it.

    Attributes:
        explain: why a model (by name or alias) has what it has, None if there is no such model.
        cordon: close a node to new work, or open it again.
        remove_node: forget a node and drop its session.
        is_ready: raises LlmgwError unless requests can be served and written.
        metrics: the Prometheus text.
    """

    version: str
    server_id: str
    started_at: datetime
    clock: Clock
    catalog: CatalogRevisions
    keys: ApiKeys
    enrollment: Enrollment
    events: EventBus
    fleet: Callable[[], FleetView]
    plan: Callable[[], Plan]
    demand: Callable[[], Demand]
    explain: Callable[[str], Explanation | None]
    tail_logs: TailLogs
    cordon: Callable[[NodeId, bool], Awaitable[None]]
    remove_node: Callable[[NodeId], Awaitable[None]]
    is_ready: Callable[[], Awaitable[None]]
    metrics: Callable[[], bytes]
    metrics_token: str = ""

    def in_flight(self, replica_id: ReplicaId) -> int:
        """Return the requests that run on a replica."""
        return self.demand().in_flight.get(replica_id, 0)
