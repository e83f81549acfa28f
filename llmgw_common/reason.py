"""Why something was done or refused: a code for programs, a text for people, facts for both.

An action, verdict or event without a reason does not type-check: the field has no default.
"""

from dataclasses import dataclass
from enum import StrEnum


class ReasonCode(StrEnum):
    """Every reason llmgw gives, in one list."""

    # why a replica is placed, kept or ended
    BELOW_WANTED = "below_wanted"
    DEMAND = "demand"
    ABOVE_WANTED = "above_wanted"
    MODEL_REMOVED = "model_removed"
    IDLE = "idle"
    OPERATOR = "operator"
    SHARD_FAILED = "shard_failed"
    SHARD_STOPPED = "shard_stopped"
    SHARD_MISSING = "shard_missing"
    START_DEADLINE = "start_deadline"
    LAUNCH_GRACE = "launch_grace"
    NODE_LOST = "node_lost"
    DRAINED = "drained"
    DRAIN_DEADLINE = "drain_deadline"
    REPLICA_FAILED = "replica_failed"
    UNCLAIMED = "unclaimed"
    RETENTION = "retention"
    REFUSED = "refused"
    ADOPTED = "adopted"
    # why nothing happens
    SETTLING = "settling"
    BACK_OFF = "back_off"
    NO_PLACE = "no_place"
    # why a node cannot take a shard (the first filter that failed)
    NOT_CONNECTED = "not_connected"
    NODE_SUSPECT = "node_suspect"
    CORDONED = "cordoned"
    NOT_IN_POOL = "not_in_pool"
    ENGINE_UNSUPPORTED = "engine_unsupported"
    TOO_FEW_GPUS = "too_few_gpus"
    TOO_LITTLE_GPU_MEMORY = "too_little_gpu_memory"
    TOO_LITTLE_HOST_MEMORY = "too_little_host_memory"
    TOO_LITTLE_DISK = "too_little_disk"
    NO_PORTS = "no_ports"
    NO_NODES = "no_nodes"
    GANG_UNSUPPORTED = "gang_unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why, in three forms.

    Attributes:
        code: stable word for programs.
        text: one line for people, with its numbers.
        facts: the numbers by name, for the API and for spans.
    """

    code: ReasonCode
    text: str
    facts: tuple[tuple[str, str | int | float], ...] = ()
