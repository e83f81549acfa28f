"""The result of a pass: an ordered list of typed actions, each with its reason.

The executor matches on these exhaustively; a new action that nobody applies fails the type check.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw_common.ids import ModelName, NodeId, ReplicaId, ShardId
from llmgw_common.reason import Reason
from llmgw_server.planner.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlacement:
    """Which node, GPUs and port one shard gets."""

    node_id: NodeId
    node_name: str
    rank: int
    gpu_uuids: tuple[str, ...]
    gpu_indices: tuple[int, ...]
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceReplica:
    """Start a new replica of `model` after `profile`."""

    model: ModelName
    profile: str
    shards: tuple[ShardPlacement, ...]
    attempt: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReplica:
    """Route no new request to it, wait for the running ones, then stop it."""

    replica_id: ReplicaId
    deadline_at_s: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplica:
    """End all its shards now; it becomes stopped when they are."""

    replica_id: ReplicaId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FailReplica:
    """Mark it failed; its other shards are ended."""

    replica_id: ReplicaId
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShard:
    """End one shard that no wanted replica claims, or that a failed replica left."""

    shard_id: ShardId
    replica_id: ReplicaId
    node_id: NodeId
    epoch: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReplica:
    """Drop a terminal replica from the picture."""

    replica_id: ReplicaId
    reason: Reason


Action = PlaceReplica | DrainReplica | StopReplica | FailReplica | StopShard | ForgetReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """Why a model has fewer replicas than wanted, as of this pass.

    Attributes:
        verdicts: every candidate with the first rule that turned it down.
        retry_at_s: when something will be tried again by time alone (back-off, settling), or None.
        can_ever_fit: False when no change of load, only of nodes or catalog, can help.
    """

    model: ModelName
    missing: int
    reason: Reason
    verdicts: tuple[Verdict, ...] = ()
    retry_at_s: float | None = None
    can_ever_fit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one pass decided.

    Attributes:
        wanted: replicas wanted per model, in this pass.
        unmet: models that stay short, and why.
        next_deadline_at_s: when time alone makes another pass worth while; None if never.
    """

    actions: tuple[Action, ...] = ()
    wanted: Mapping[ModelName, int] = field(default_factory=dict)
    unmet: Mapping[ModelName, Unmet] = field(default_factory=dict)
    next_deadline_at_s: float | None = None
