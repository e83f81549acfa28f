"""After a server starts it waits for the nodes it knows, before it acts on a half-seen fleet."""

from llmgw_server.fleet.model import FleetView, NodeState
from llmgw_server.planner.policy import Policy


def awaited(fleet: FleetView) -> tuple[str, ...]:
    """Names of nodes known from before that have not registered since the server started."""
    names = (n.name for n in fleet.nodes.values() if n.state is NodeState.EXPECTED)
    return tuple(sorted(names))


def may_place(fleet: FleetView, policy: Policy, now_s: float) -> bool:
    """Placing and scaling wait for all known nodes or the settling time (30 s)."""
    return not awaited(fleet) or now_s - fleet.started_at_s >= policy.settle_place_s


def may_stop_unclaimed(fleet: FleetView, policy: Policy, now_s: float) -> bool:
    """Stopping what nobody claims, and replacing, wait for all known nodes or 5 min."""
    return not awaited(fleet) or now_s - fleet.started_at_s >= policy.settle_stop_s
