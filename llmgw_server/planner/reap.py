"""Step 2: end what is stuck or unclaimed, forget what is finished.

1. A replica past its start deadline fails; visible progress moves the deadline on.
2. One with no live evidence and no progress past `launch_grace` fails early.
3. A replica on a lost node fails, unless its engine still answers; then it is kept for 15 min.
4. The other shards of a failed replica are stopped.
5. Shards that nobody claims are stopped, once the server has settled.
6. Terminal replicas with nothing left running are forgotten after the retention time.
"""

from llmgw_common.documents.models import Profile
from llmgw_common.reason import Reason, ReasonCode
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import NodeState, Replica, Shard
from llmgw_server.fleet.replica_state import has_live_evidence
from llmgw_server.planner.draft import Draft
from llmgw_server.planner.plan import FailReplica, ForgetReplica, StopShard
from llmgw_server.planner.settling import may_stop_unclaimed

#: Used when the profile of a replica is no longer in the catalog.
_STARTUP_TIMEOUT_S = 1200.0
_LAUNCH_GRACE_S = 120.0


def reap(draft: Draft) -> None:
    """Add what must end; see the numbered rules of this module."""
    for replica in _in_order(draft):
        if replica.is_terminal:
            _stop_rest(draft, replica)  # 4
            _forget(draft, replica)  # 6
        else:
            reason = _why_fail(draft, replica)  # 1, 2, 3
            if reason:
                draft.actions.append(FailReplica(replica_id=replica.replica_id, reason=reason))
                draft.ending.add(replica.replica_id)
    if may_stop_unclaimed(draft.fleet, draft.policy, draft.now_s):
        for shard in draft.fleet.unclaimed:  # 5
            text = f"shard {shard.shard_id} of {shard.replica_id} is claimed by no replica"
            _stop(draft, shard, Reason(code=ReasonCode.UNCLAIMED, text=text))


def start_deadline_s(replica: Replica, profile: Profile | None) -> float:
    """When an unfinished start fails: `startup_timeout` after it last visibly moved.

    Moving is a new shard state or more bytes of weights; states only go forward within an epoch,
    so only a fetch that goes on can move the deadline on without end.
    """
    timeout_s = profile.startup_timeout if profile else _STARTUP_TIMEOUT_S
    return replica.progress_at_s + timeout_s


def _in_order(draft: Draft) -> list[Replica]:
    return sorted(draft.fleet.replicas.values(), key=lambda r: (r.created_at_s, r.replica_id))


def _profile_of(draft: Draft, replica: Replica) -> Profile | None:
    model = draft.catalog.model(replica.model)
    return model.profile(replica.profile) if model else None


def _why_fail(draft: Draft, replica: Replica) -> Reason | None:
    lost = _lost_node(draft, replica)
    if lost:
        return lost
    if replica.state not in (ReplicaState.PLACING, ReplicaState.STARTING):
        return None
    profile = _profile_of(draft, replica)
    deadline_at_s = start_deadline_s(replica, profile)
    if draft.now_s >= deadline_at_s:
        step = ", ".join(sorted({s.state.value for s in replica.shards})) or "placing"
        text = f"did not become ready in time; it was {step}"
        return Reason(code=ReasonCode.START_DEADLINE, text=text)
    draft.wake_at(deadline_at_s)
    return _launch_grace(draft, replica, profile)


def _launch_grace(draft: Draft, replica: Replica, profile: Profile | None) -> Reason | None:
    waits = (ShardState.PENDING, ShardState.STARTING)
    is_mute = all(shard.state in waits for shard in replica.shards)
    if not is_mute or has_live_evidence(replica):
        return None
    grace_s = profile.launch_grace if profile else _LAUNCH_GRACE_S
    at_s = replica.progress_at_s + grace_s
    if draft.now_s < at_s:
        draft.wake_at(at_s)
        return None
    text = f"nothing moved for {grace_s:.0f} s and no engine process shows itself"
    return Reason(code=ReasonCode.LAUNCH_GRACE, text=text)


def _lost_node(draft: Draft, replica: Replica) -> Reason | None:
    for shard in replica.shards:
        node = draft.fleet.nodes.get(shard.node_id)
        if node is None or node.state is not NodeState.LOST or shard.is_terminal:
            continue
        silent_s = draft.now_s - (node.last_heard_at_s or node.since_at_s)
        still_answers = draft.demand.answers.get(replica.replica_id, False)
        if still_answers and silent_s < draft.policy.unreachable_after_s:
            draft.wake_at(draft.now_s + draft.policy.unreachable_after_s - silent_s)
            continue
        text = f"node {node.name} has been silent for {silent_s:.0f} s"
        return Reason(
            code=ReasonCode.NODE_LOST, text=text, facts=(("silent_s", round(silent_s, 1)),)
        )
    return None


def _stop_rest(draft: Draft, replica: Replica) -> None:
    for shard in replica.shards:
        if not shard.is_terminal and shard.state is not ShardState.STOPPING:
            text = f"its replica {replica.replica_id} {replica.state.value}"
            _stop(draft, shard, Reason(code=ReasonCode.REPLICA_FAILED, text=text))


def _stop(draft: Draft, shard: Shard, reason: Reason) -> None:
    node = draft.fleet.nodes.get(shard.node_id)
    if node and node.session:
        draft.actions.append(
            StopShard(
                shard_id=shard.shard_id,
                replica_id=shard.replica_id,
                node_id=shard.node_id,
                epoch=shard.epoch,
                reason=reason,
            )
        )


def _forget(draft: Draft, replica: Replica) -> None:
    if any(s.holds_resources and s.node_id in draft.fleet.nodes for s in replica.shards):
        return
    at_s = replica.since_at_s + draft.policy.retention_s
    if draft.now_s < at_s:
        draft.wake_at(at_s)
        return
    text = f"{replica.state.value} more than {draft.policy.retention_s:.0f} s ago"
    reason = Reason(code=ReasonCode.RETENTION, text=text)
    draft.actions.append(ForgetReplica(replica_id=replica.replica_id, reason=reason))
