"""The pass in the making: what it reads, and the actions that its steps add.

Later steps see what earlier ones decided: `ending` holds the replicas that this pass already ends,
and the book holds the GPUs that it already promised.
"""

from dataclasses import dataclass, field

from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName, ReplicaId
from llmgw_server.fleet.book import FleetBook
from llmgw_server.fleet.model import FleetView, Replica
from llmgw_server.planner.plan import Action, Plan, Unmet
from llmgw_server.planner.policy import Demand, Policy


@dataclass(slots=True, kw_only=True)
class Draft:
    """One pass: its inputs and what its steps decided so far."""

    catalog: Catalog
    fleet: FleetView
    demand: Demand
    policy: Policy
    now_s: float
    book: FleetBook
    actions: list[Action] = field(default_factory=list)
    ending: set[ReplicaId] = field(default_factory=set)
    wanted: dict[ModelName, int] = field(default_factory=dict)
    unmet: dict[ModelName, Unmet] = field(default_factory=dict)
    deadlines_at_s: list[float] = field(default_factory=list)

    def wake_at(self, at_s: float) -> None:
        """Ask for another pass at `at_s`; the past is not asked for."""
        if at_s > self.now_s:
            self.deadlines_at_s.append(at_s)

    def counting(self, model: Model) -> list[Replica]:
        """Replicas of the model that count toward its wanted number after this pass so far."""
        return [
            replica
            for replica in self.fleet.replicas_of(model.name)
            if replica.counts_toward_wanted and replica.replica_id not in self.ending
        ]

    def finish(self) -> Plan:
        """Return what was decided."""
        return Plan(
            actions=tuple(self.actions),
            wanted=dict(self.wanted),
            unmet=dict(self.unmet),
            next_deadline_at_s=min(self.deadlines_at_s, default=None),
        )
