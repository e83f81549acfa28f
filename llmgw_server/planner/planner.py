"""The pass. Its body is its table of contents; the numbers are those of the design's pass.

Pure: the same catalog, fleet, demand and time give the same plan, twice and on any machine.
Steps 3 (restarts and rollouts) and, within 7, eviction and preemption are rooms not yet furnished.
"""

from llmgw_common.documents.catalog import Catalog
from llmgw_server.fleet.book import FleetBook
from llmgw_server.fleet.model import FleetView
from llmgw_server.planner.draft import Draft
from llmgw_server.planner.drain import finish_drains
from llmgw_server.planner.plan import Plan
from llmgw_server.planner.policy import Demand, Policy
from llmgw_server.planner.reap import reap
from llmgw_server.planner.scale_down import scale_down
from llmgw_server.planner.scale_up import scale_up
from llmgw_server.planner.wanted import decide_wanted


def plan(
    catalog: Catalog, fleet: FleetView, demand: Demand, now_s: float, policy: Policy | None = None
) -> Plan:
    """Return what to do now, in order, each action with its reason.

    Args:
        catalog: what is wanted.
        fleet: what is, already observed at `now_s` (step 1 is the registry's).
        demand: what requests are doing.
        now_s: seconds on the clock of the fleet's times.
        policy: limits; the design's if None.
    """
    draft = Draft(
        catalog=catalog,
        fleet=fleet,
        demand=demand,
        policy=policy or Policy(),
        now_s=now_s,
        book=FleetBook(fleet),
    )
    reap(draft)  # 2
    decide_wanted(draft)  # 4
    scale_down(draft)  # 5
    finish_drains(draft)  # 6
    scale_up(draft)  # 7
    return draft.finish()
