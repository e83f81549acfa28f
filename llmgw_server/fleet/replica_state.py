"""A replica's state, derived from its shards. Pure: the time comes in, nothing is read.

Rules, in this order (design: replicas):

1. draining or stopped: unchanged.
2. no shards: placing.
3. a failed shard: failed, and the first error is kept.
4. a stopped shard while not draining: failed, it stopped unexpectedly.
5. as many shards as wanted: no longer adopted; from here a lost shard is a failure.
6. all ready and as many as wanted (or nobody said how many): ready, stamped on the change.
7. fewer than wanted: starting while adopted (the rest may report yet), else failed.
8. otherwise starting.

A failed replica stays failed: rules 3, 4 and 7 end it for good.
"""

from dataclasses import replace

from llmgw_common.states import LIVE_EVIDENCE, ReplicaState, ShardState
from llmgw_server.fleet.model import STORY_LENGTH, Replica, Shard, Transition

_SETTLED = (ReplicaState.DRAINING, ReplicaState.STOPPED, ReplicaState.FAILED)


def derive(replica: Replica, now_s: float) -> Replica:
    """Return `replica` with the state that its shards give it at `now_s`.

    Returns the same object when nothing changes.
    """
    if replica.state in _SETTLED:  # 1
        return replica
    state, error, is_adopted = _judge(replica)
    if (state, error, is_adopted) == (replica.state, replica.error, replica.is_adopted):
        return replica
    moved = replace(replica, error=error, is_adopted=is_adopted)
    if state is replica.state:
        return moved
    if state is ReplicaState.READY and replica.ready_at_s is None:
        moved = replace(moved, ready_at_s=now_s)
    return enter(moved, state, error or "all shards are " + state.value, now_s)


def _judge(replica: Replica) -> tuple[ReplicaState, str, bool]:
    shards = replica.shards
    if not shards:  # 2
        return ReplicaState.PLACING, replica.error, replica.is_adopted
    broken = _first_broken(shards)
    if broken:  # 3, 4
        return ReplicaState.FAILED, replica.error or broken, replica.is_adopted
    wanted = replica.wanted_shards
    is_whole = len(shards) >= wanted
    is_adopted = replica.is_adopted and not (wanted and is_whole)  # 5
    if is_whole and all(shard.state is ShardState.READY for shard in shards):  # 6
        return ReplicaState.READY, replica.error, is_adopted
    if not is_whole and not is_adopted:  # 7
        text = f"replica has {len(shards)} of {wanted} shards"
        return ReplicaState.FAILED, replica.error or text, is_adopted
    return ReplicaState.STARTING, replica.error, is_adopted  # 7 (adopted), 8


def _first_broken(shards: tuple[Shard, ...]) -> str:
    for shard in shards:
        if shard.state is ShardState.FAILED:
            text = shard.error.text if shard.error else "no reason was given"
            return f"shard {shard.shard_id} failed: {text}"
    for shard in shards:
        if shard.state in (ShardState.STOPPED, ShardState.STOPPING):
            return f"shard {shard.shard_id} stopped unexpectedly"
    return ""


def enter(replica: Replica, state: ReplicaState, why: str, now_s: float) -> Replica:
    """Return `replica` in `state`, with the transition added to its story."""
    step = Transition(at_s=now_s, before=replica.state.value, after=state.value, why=why)
    return replace(
        replica,
        state=state,
        since_at_s=now_s,
        progress_at_s=now_s,
        story=(*replica.story, step)[-STORY_LENGTH:],
    )


def has_live_evidence(replica: Replica) -> bool:
    """At least one shard proves that something runs; pending and starting prove nothing."""
    return any(shard.state in LIVE_EVIDENCE for shard in replica.shards)
