"""The route table: an immutable picture of which replicas serve which model; swapped whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmgw_common.ids import ReplicaId

#: A replica in one of its lives: counts are kept by this, never by address (case L03).
TargetKey = tuple[ReplicaId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A ready replica.

    Attributes:
        weight: capacity beside others; more takes more.
        access_key: what its engine wants from us.
    """

    replica_id: ReplicaId
    epoch: int
    host: str
    port: int
    served_model: str
    access_key: str = field(default="", repr=False)
    weight: float = 1.0
    node_name: str = ""

    @property
    def key(self) -> TargetKey:
        """What its counts are kept by."""
        return self.replica_id, self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLimits:
    """A model's limits; times in seconds.

    Attributes:
        first_byte_s: from sending a streamed request to the first byte of its content.
        whole_answer_s: the same for an answer in one piece, which begins when all of it is made.
            Source: what OpenAI's Python client waits by default.
    """

    max_queue: int = 200
    max_wait_s: float = 120.0
    first_byte_s: float = 60.0
    whole_answer_s: float = 600.0
    between_bytes_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoute:
    """One model.

    Attributes:
        targets: its ready replicas; empty while it is cold.
        why_not_ready: what explain says, for the 503 of a cold model.
        is_placeable: False if waiting cannot help.
    """

    name: str
    kind: str = "chat"
    aliases: tuple[str, ...] = ()
    engine_kind: str = ""
    targets: tuple[Target, ...] = ()
    limits: RouteLimits = RouteLimits()
    why_not_ready: str = ""
    is_placeable: bool = True


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All models, by name and alias."""

    revision: int = 0
    routes: tuple[ModelRoute, ...] = ()
    _by_name: Mapping[str, ModelRoute] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, revision: int, routes: Iterable[ModelRoute]) -> "RouteTable":
        """Return a table of these routes; a name wins over an alias."""
        all_routes = tuple(routes)
        by_name = {alias: route for route in all_routes for alias in route.aliases}
        by_name.update({route.name: route for route in all_routes})
        return cls(revision, all_routes, by_name)

    def find(self, name: str) -> ModelRoute | None:
        """Return the route of a model or alias."""
        return self._by_name.get(name)
