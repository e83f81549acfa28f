"""Step 7: place what is missing, models by priority, profiles in their order.

1. Not before the server has settled.
2. Not within the model's back-off.
3. Try each profile in order; the first with a place is taken.
4. Otherwise keep the verdict of every candidate.
"""

from dataclasses import replace

from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName
from llmgw_common.reason import Reason, ReasonCode
from llmgw_server.planner.backoff import backoff_s
from llmgw_server.planner.draft import Draft
from llmgw_server.planner.filters import Request
from llmgw_server.planner.placement import Verdicts, place
from llmgw_server.planner.plan import PlaceReplica, Unmet
from llmgw_server.planner.settling import awaited, may_place
from llmgw_server.planner.verdict import Verdict


def scale_up(draft: Draft) -> None:
    """Add the placements of missing replicas, or why there is none."""
    for model in sorted(draft.catalog.models, key=lambda m: (-m.priority, m.name)):
        name = ModelName(model.name)
        missing = draft.wanted[name] - len(draft.counting(model))
        if missing <= 0:
            continue
        unmet = _settling(draft, name) or _backing_off(draft, name)  # 1, 2
        while missing > 0 and unmet is None:
            placed = _try_profiles(draft, model)  # 3
            if isinstance(placed, PlaceReplica):
                draft.actions.append(placed)
                missing -= 1
            else:
                unmet = placed  # 4
        if unmet:
            draft.unmet[name] = replace(unmet, missing=missing)


def _settling(draft: Draft, model: ModelName) -> Unmet | None:
    if may_place(draft.fleet, draft.policy, draft.now_s):
        return None
    retry_at_s = draft.fleet.started_at_s + draft.policy.settle_place_s
    draft.wake_at(retry_at_s)
    text = f"this server has just started and waits for {', '.join(awaited(draft.fleet))}"
    reason = Reason(code=ReasonCode.SETTLING, text=text)
    return Unmet(model=model, missing=0, reason=reason, retry_at_s=retry_at_s)


def _backing_off(draft: Draft, model: ModelName) -> Unmet | None:
    failures = draft.fleet.failures.get(model)
    if failures is None:
        return None
    retry_at_s = failures.last_at_s + backoff_s(failures, model, draft.policy)
    if draft.now_s >= retry_at_s:
        return None
    draft.wake_at(retry_at_s)
    left_s = retry_at_s - draft.now_s
    text = f"failed {failures.in_a_row} times in a row; next try in {left_s:.0f} s"
    reason = Reason(code=ReasonCode.BACK_OFF, text=text, facts=(("failures", failures.in_a_row),))
    return Unmet(model=model, missing=0, reason=reason, retry_at_s=retry_at_s)


def _try_profiles(draft: Draft, model: Model) -> PlaceReplica | Unmet:
    verdicts: list[Verdict] = []
    texts: list[str] = []
    for profile in model.profiles:
        engine = draft.catalog.engine(profile.engine)
        if engine is None:
            raise ValueError(f"profile {profile.name} names engine {profile.engine}, unknown")
        request = Request(
            catalog=draft.catalog, model=model, profile=profile, engine=engine, book=draft.book
        )
        found = place(request, draft.fleet.nodes.values())
        if not isinstance(found, Verdicts):
            return PlaceReplica(
                model=ModelName(model.name),
                profile=profile.name,
                shards=found,
                attempt=_attempt(draft, model),
                reason=_why_wanted(draft, model, found[0].node_name),
            )
        texts.append(found.text)
        verdicts.extend(found.verdicts)
    return Unmet(
        model=ModelName(model.name),
        missing=0,
        reason=Reason(code=ReasonCode.NO_PLACE, text="; ".join(texts)),
        verdicts=tuple(verdicts),
    )


def _attempt(draft: Draft, model: Model) -> int:
    failures = draft.fleet.failures.get(ModelName(model.name))
    return failures.in_a_row if failures else 0


def _why_wanted(draft: Draft, model: Model, node_name: str) -> Reason:
    have = len(draft.counting(model))
    wanted = draft.wanted[ModelName(model.name)]
    facts = (("have", have), ("wanted", wanted), ("node", node_name))
    waiting = draft.demand.waiting.get(ModelName(model.name), 0)
    if waiting and not have:
        text = f"{waiting} requests wait for it; placed on {node_name}"
        return Reason(code=ReasonCode.DEMAND, text=text, facts=(*facts, ("waiting", waiting)))
    text = f"{have} of {wanted} wanted replicas; placed on {node_name}"
    return Reason(code=ReasonCode.BELOW_WANTED, text=text, facts=facts)
