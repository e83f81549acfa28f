"""Step 6: a draining replica stops when no gateway routes to it and nothing runs on it.

1. Every gateway process must have acknowledged a table without it.
2. Then: no request in flight, or the drain deadline has passed.
"""

from llmgw_common.reason import Reason, ReasonCode
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import Replica
from llmgw_server.planner.draft import Draft
from llmgw_server.planner.plan import StopReplica


def finish_drains(draft: Draft) -> None:
    """Add the stops of replicas whose drain is over."""
    for replica in sorted(draft.fleet.replicas.values(), key=lambda r: r.replica_id):
        if replica.state is not ReplicaState.DRAINING or _is_stopping(replica):
            continue
        reason = _why_over(draft, replica)
        if reason:
            draft.actions.append(StopReplica(replica_id=replica.replica_id, reason=reason))


def _is_stopping(replica: Replica) -> bool:
    return all(shard.is_terminal or shard.state is ShardState.STOPPING for shard in replica.shards)


def _why_over(draft: Draft, replica: Replica) -> Reason | None:
    in_flight = draft.demand.in_flight.get(replica.replica_id, 0)
    deadline_at_s = replica.drain_deadline_at_s or draft.now_s
    if draft.now_s >= deadline_at_s:
        text = f"the drain deadline has passed with {in_flight} requests running"
        return Reason(code=ReasonCode.DRAIN_DEADLINE, text=text, facts=(("in_flight", in_flight),))
    if replica.replica_id in draft.demand.routed or in_flight:
        draft.wake_at(deadline_at_s)
        return None
    return Reason(code=ReasonCode.DRAINED, text="no request runs on it and none can reach it")
