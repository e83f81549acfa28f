"""The reconcile loop: wake, observe, plan, apply, publish. The only owner of a pass.

Rule 1: a pass runs when something moved (many wakes make one pass) and at least every interval.
Rule 2: a pass that does nothing writes no log line and no event.
Rule 3: a pass that fails is logged, counted and tried again; the loop itself never ends by it.
Rule 4: a loop that finds it was paused itself holds that silence against no node.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from llmgw_common.clock import Clock
from llmgw_common.documents.catalog import Catalog
from llmgw_common.ids import ModelName
from llmgw_common.reason import ReasonCode
from llmgw_server.fleet.model import FleetView
from llmgw_server.fleet.node_state import Patience
from llmgw_server.fleet.registry import Change, FleetRegistry
from llmgw_server.planner.plan import Plan, Unmet
from llmgw_server.planner.planner import plan
from llmgw_server.planner.policy import Demand, Policy
from llmgw_server.reconciler.executor import Executor

log = structlog.get_logger(__name__)

#: Wakes that come closer together than this become one pass.
COALESCE_S: Final = 0.02
#: A gap longer than this beyond the expected wait was a pause of this process (design: step 1).
PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the loop asks and tells, beside the registry.

    Attributes:
        catalog: the current catalog.
        demand: what requests are doing now.
        publish: told the fleet after each pass, so that routes follow it.
        record: told each change, as an event.
        measured: told how long a pass took (seconds) and how many actions of each kind it had.
    """

    catalog: Callable[[], Catalog]
    demand: Callable[[], Demand]
    publish: Callable[[FleetView], None]
    record: Callable[[Change], None]
    measured: Callable[[float, Plan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The loop's numbers."""

    policy: Policy
    patience: Patience
    interval_s: float = 5.0


class ReconcileLoop:
    """Runs passes; see the module's rules."""

    def __init__(
        self,
        registry: FleetRegistry,
        executor: Executor,
        surroundings: Surroundings,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._registry = registry
        self._executor = executor
        self._around = surroundings
        self._clock = clock
        self._pace = pace
        self._wakes = asyncio.Event()
        self._unmet: dict[ModelName, tuple[ReasonCode, str]] = {}
        self.last_plan = Plan()
        self.passes = 0
        self.failed_passes = 0

    def wake(self) -> None:
        """Ask for a pass soon."""
        self._wakes.set()

    async def run(self) -> None:
        """Run passes until cancelled."""
        while True:
            self._wakes.clear()
            self._pass_safely()
            wait_s = self._wait_s()
            slept_from_s = self._clock.monotonic_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wakes.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(COALESCE_S)
            self._notice_pause(self._clock.monotonic_s() - slept_from_s - wait_s)

    def _wait_s(self) -> float:
        deadline_s = self.last_plan.next_deadline_at_s
        if deadline_s is None:
            return self._pace.interval_s
        return min(max(deadline_s - self._clock.monotonic_s(), COALESCE_S), self._pace.interval_s)

    def _notice_pause(self, gap_s: float) -> None:
        if gap_s > PAUSE_S:
            log.warning("this server was paused; no node is blamed for it", gap_s=round(gap_s, 1))
            self._registry.excuse_silence(gap_s, self._clock.monotonic_s())

    def _pass_safely(self) -> None:
        try:
            self.one_pass()
        except Exception:
            self.failed_passes += 1
            log.exception("reconcile pass failed; the next one tries again")

    def one_pass(self) -> Plan:
        """Observe, plan, apply, publish; return the plan."""
        begun_s = self._clock.monotonic_s()
        self._registry.needs_pass = False
        self._registry.observe(self._pace.patience, begun_s)
        catalog = self._around.catalog()
        decided = plan(
            catalog, self._registry.view(), self._around.demand(), begun_s, self._pace.policy
        )
        for action in decided.actions:
            log.info("action", kind=type(action).__name__, reason=action.reason.text)
            self._executor.apply(action, catalog)
        self._note_unmet(decided)
        self.last_plan = decided
        self.passes += 1
        self._around.publish(self._registry.view())
        for change in self._registry.take_changes():
            self._around.record(change)
        self._around.measured(self._clock.monotonic_s() - begun_s, decided)
        return decided

    def _note_unmet(self, decided: Plan) -> None:
        """Record a model's shortage when its reason changes, not in every pass."""
        now = {name: _essence(unmet) for name, unmet in decided.unmet.items()}
        for name, essence in now.items():
            if self._unmet.get(name) != essence:
                unmet = decided.unmet[name]
                self._registry.note(
                    Change(
                        object_kind="model",
                        object_id=name,
                        code=unmet.reason.code.value,
                        text=f"{name}: {unmet.missing} missing: {unmet.reason.text}",
                        facts=unmet.reason.facts,
                    )
                )
        self._unmet = now


def _essence(unmet: Unmet) -> tuple[ReasonCode, str]:
    """What makes a shortage a new one; a back-off that counts down is the same one."""
    if unmet.reason.code is ReasonCode.BACK_OFF:
        return unmet.reason.code, str(unmet.reason.facts)
    return unmet.reason.code, unmet.reason.text
