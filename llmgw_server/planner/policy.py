"""The numbers that the pass goes by, and what the gateways tell it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw_common.ids import ModelName, ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of the reconciler, in seconds (design: replicas; settings: `reconcile`)."""

    settle_place_s: float = 30.0
    settle_stop_s: float = 300.0
    backoff_first_s: float = 5.0
    backoff_max_s: float = 300.0
    retention_s: float = 600.0
    unreachable_after_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What requests are doing, as the gateways count it.

    Attributes:
        waiting: requests waiting for a model with no ready replica.
        in_flight: requests running per replica.
        routed: replicas in the route table that every gateway acknowledged last.
        last_request_at_s: when a request for the model last began or ended.
        answers: whether the engine of a replica on a silent node answered a probe just now.
    """

    waiting: Mapping[ModelName, int] = field(default_factory=dict)
    in_flight: Mapping[ReplicaId, int] = field(default_factory=dict)
    routed: frozenset[ReplicaId] = frozenset()
    last_request_at_s: Mapping[ModelName, float] = field(default_factory=dict)
    answers: Mapping[ReplicaId, bool] = field(default_factory=dict)
