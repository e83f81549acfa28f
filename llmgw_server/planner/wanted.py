"""Step 4: how many replicas each model should have now.

1. At least `scaling.min`, at most `scaling.max`.
2. An on-demand model (`min` 0) with a waiting request wants one.
3. It keeps one that it has while requests run or wait, and until `idle_timeout` after the last.

No traffic is zero traffic, not missing data: a replica that nobody ever asked is idle since it
became ready (an adopted one since this server knows it).
"""

from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName
from llmgw_server.planner.draft import Draft


def decide_wanted(draft: Draft) -> None:
    """Fill `draft.wanted` for every model of the catalog."""
    for model in draft.catalog.models:
        draft.wanted[ModelName(model.name)] = _wanted(draft, model)


def _wanted(draft: Draft, model: Model) -> int:
    least, most = model.scaling.min, model.scaling.most
    if least > 0:  # 1
        return min(least, most)
    if draft.demand.waiting.get(ModelName(model.name), 0):  # 2
        return 1
    return 1 if _is_in_use(draft, model) else 0  # 3


def _is_in_use(draft: Draft, model: Model) -> bool:
    replicas = draft.counting(model)
    if not replicas:
        return False
    if any(draft.demand.in_flight.get(replica.replica_id, 0) for replica in replicas):
        return True
    if any(replica.ready_at_s is None for replica in replicas):
        # A start that was asked for goes on to its end: the one who asked comes back with a retry.
        return True
    last_use_s = max(
        draft.demand.last_request_at_s.get(ModelName(model.name), 0.0),
        *(max(r.last_used_at_s or 0.0, r.ready_at_s or 0.0, r.since_at_s) for r in replicas),
    )
    idle_at_s = last_use_s + model.scaling.idle_timeout
    draft.wake_at(idle_at_s)
    return draft.now_s < idle_at_s
