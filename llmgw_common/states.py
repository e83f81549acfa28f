"""The states of a shard and of a replica, with who makes each move.

Shard (moved by the agent, reported to the server):

    pending -> installing -> fetching -> starting -> loading -> ready
       any of these -> stopping -> stopped        (a stop was asked for)
       any of these -> failed                     (a step failed or the process ended)

Replica (derived by the server from its shards, see llmgw_server/fleet/replica_state.py):

    placing -> starting -> ready -> draining -> stopped
       placing, starting, ready -> failed

Rule: `loading` is the first state that proves a process lives; everything before it looks the same
whether an engine is on its way or nothing was ever started.
"""

from enum import StrEnum
from typing import Final


class ShardState(StrEnum):
    """Where one node's part of a replica stands."""

    PENDING = "pending"
    INSTALLING = "installing"
    FETCHING = "fetching"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ReplicaState(StrEnum):
    """Where one running copy of a model stands."""

    PLACING = "placing"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_UNDER_WAY = frozenset(
    {
        ShardState.PENDING,
        ShardState.INSTALLING,
        ShardState.FETCHING,
        ShardState.STARTING,
        ShardState.LOADING,
        ShardState.READY,
    }
)

#: Which state may follow which. A step may be skipped (an adopted engine reports `ready` first).
SHARD_MOVES: Final[dict[ShardState, frozenset[ShardState]]] = {
    **{
        state: _UNDER_WAY | {ShardState.STOPPING, ShardState.STOPPED, ShardState.FAILED}
        for state in _UNDER_WAY
    },
    ShardState.STOPPING: frozenset({ShardState.STOPPED, ShardState.FAILED}),
    ShardState.STOPPED: frozenset(),
    ShardState.FAILED: frozenset({ShardState.STOPPED}),
}

TERMINAL_SHARD_STATES: Final = frozenset({ShardState.STOPPED, ShardState.FAILED})
TERMINAL_REPLICA_STATES: Final = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})

#: At least one shard in one of these proves that something runs.
LIVE_EVIDENCE: Final = frozenset({ShardState.LOADING, ShardState.READY})
