"""The fleet as frozen values: what the planner reads and the API shows.

Rule 1: all `..._at_s` are seconds on the server's monotonic clock.
Rule 2: a value here never changes; the registry replaces it by a new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw_common.ids import ModelName, NodeId, ReplicaId, ShardId
from llmgw_common.protocol.facts import FetchProgress, ShardError
from llmgw_common.reason import Reason
from llmgw_common.states import TERMINAL_SHARD_STATES, ReplicaState, ShardState

#: Transitions kept per replica (design: replicas, explaining).
STORY_LENGTH = 50


class NodeState(StrEnum):
    """How sure the server is of a node.

    expected: known from before, has not registered since the server started.
    connected: heartbeats come. suspect: none for `suspect_after`. lost: none for `lost_after`.
    """

    EXPECTED = "expected"
    CONNECTED = "connected"
    SUSPECT = "suspect"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, named by UUID; memory None means that the driver did not say."""

    uuid: str
    index: int
    name: str = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    is_healthy: bool = True
    health_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with an agent.

    Attributes:
        since_at_s: when it came into this state.
        last_heard_at_s: when its last message came; None if it never spoke to this server.
        session: number of its live session, 0 if there is none.
    """

    node_id: NodeId
    name: str
    state: NodeState
    since_at_s: float
    last_heard_at_s: float | None = None
    is_cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    enrolled_labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    host: str = ""
    boot_id: str = ""
    os: str = ""
    arch: str = ""
    agent_version: str = ""
    driver: str = ""
    gpu_note: str = ""
    cpu_count: int = 0
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()
    port_low: int = 20000
    port_high: int = 24999
    engine_kinds: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    is_simulated: bool = False
    session: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One node's part of a replica; rank 0, the leader, serves HTTP."""

    shard_id: ShardId
    replica_id: ReplicaId
    node_id: NodeId
    rank: int
    epoch: int
    state: ShardState
    since_at_s: float
    gpu_uuids: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    hcas: tuple[str, ...] = ()
    port: int = 0
    url: str = ""
    access_key: str = field(default="", repr=False)
    pid: int | None = None
    step_text: str = ""
    fetch: FetchProgress | None = None
    error: ShardError | None = None

    @property
    def is_terminal(self) -> bool:
        """Stopped or failed: it will not come back."""
        return self.state in TERMINAL_SHARD_STATES

    @property
    def holds_resources(self) -> bool:
        """Its GPUs and port are not free: it runs, may run, or could not be stopped."""
        if self.state is ShardState.FAILED:
            return self.error is not None and self.error.step == "stop"
        return self.state is not ShardState.STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One line of a replica's story."""

    at_s: float
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One running copy of a model: the unit that the gateway sees.

    Attributes:
        fingerprint: hash of the profile as placed; empty when an agent sent none (unknown).
        wanted_shards: how many shards make it whole; 0 if nobody said.
        last_used_at_s: when a request last ended on it; None is unknown, which is not idle.
        is_adopted: rebuilt from reports, and not yet whole.
        progress_at_s: when something last visibly moved (a state, a byte of weights).
        attempt: failures in a row before this start.
        reason: why it was placed.
    """

    replica_id: ReplicaId
    model: ModelName
    profile: str
    fingerprint: str = ""
    engine: str = ""
    engine_kind: str = ""
    served_model: str = ""
    fabric: str = ""
    pool: str = ""
    shards: tuple[Shard, ...] = ()
    state: ReplicaState = ReplicaState.PLACING
    weight: float = 1.0
    wanted_shards: int = 1
    epoch: int = 1
    attempt: int = 0
    created_at_s: float
    since_at_s: float
    progress_at_s: float
    ready_at_s: float | None = None
    last_used_at_s: float | None = None
    draining_at_s: float | None = None
    drain_deadline_at_s: float | None = None
    retiring_at_s: float | None = None
    is_adopted: bool = False
    preempted_for: ModelName | None = None
    error: str = ""
    reason: Reason | None = None
    story: tuple[Transition, ...] = ()
    trace: Mapping[str, str] | None = None

    @property
    def is_terminal(self) -> bool:
        """Stopped or failed: it will not come back."""
        return self.state in (ReplicaState.STOPPED, ReplicaState.FAILED)

    @property
    def counts_toward_wanted(self) -> bool:
        """Placing, starting and ready count, unless it retires; draining never does."""
        return self.retiring_at_s is None and self.state in (
            ReplicaState.PLACING,
            ReplicaState.STARTING,
            ReplicaState.READY,
        )

    @property
    def leader(self) -> Shard | None:
        """The shard of rank 0, which serves HTTP."""
        return next((shard for shard in self.shards if shard.rank == 0), None)

    @property
    def endpoint(self) -> str:
        """The leader's base URL, empty while unknown."""
        leader = self.leader
        return leader.url if leader else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The whole fleet at one moment.

    Attributes:
        started_at_s: when this server began to listen to agents (settling counts from here).
        unclaimed: shards that agents report and no wanted replica claims.
        failures: failed starts in a row per model, with the time of the last.
    """

    nodes: Mapping[NodeId, Node] = field(default_factory=dict)
    replicas: Mapping[ReplicaId, Replica] = field(default_factory=dict)
    unclaimed: tuple[Shard, ...] = ()
    failures: Mapping[ModelName, "Failures"] = field(default_factory=dict)
    started_at_s: float = 0.0

    def replicas_of(self, model: str) -> tuple[Replica, ...]:
        """Replicas of one model, oldest first (ties by id)."""
        found = (replica for replica in self.replicas.values() if replica.model == model)
        return tuple(sorted(found, key=lambda r: (r.created_at_s, r.replica_id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed replicas in a row of one model.

    Attributes:
        had_served: the last one had been ready before it failed.
    """

    in_a_row: int
    last_at_s: float
    last_error: str = ""
    had_served: bool = False
