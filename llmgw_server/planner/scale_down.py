"""Step 5: end what is more than wanted, the least useful first.

Order: not yet ready ones, then stale ones, then the least recently used. Ready ones drain; the
others are stopped at once. Replicas of a model that left the catalog end when the server settled.
"""

from llmgw_common.documents.catalog import Catalog
from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName
from llmgw_common.reason import Reason, ReasonCode
from llmgw_common.states import ReplicaState
from llmgw_server.fleet.model import Replica
from llmgw_server.planner.draft import Draft
from llmgw_server.planner.plan import DrainReplica, StopReplica
from llmgw_server.planner.settling import may_place, may_stop_unclaimed

_DRAIN_TIMEOUT_S = 60.0


def scale_down(draft: Draft) -> None:
    """Add the ends of replicas that are not wanted."""
    if may_stop_unclaimed(draft.fleet, draft.policy, draft.now_s):
        _end_removed_models(draft)
    if may_place(draft.fleet, draft.policy, draft.now_s):
        for model in draft.catalog.models:
            _end_surplus(draft, model)


def _end_removed_models(draft: Draft) -> None:
    for replica in sorted(draft.fleet.replicas.values(), key=lambda r: r.replica_id):
        if replica.counts_toward_wanted and draft.catalog.model(replica.model) is None:
            text = f"model {replica.model} is no longer in the catalog"
            _end(draft, replica, Reason(code=ReasonCode.MODEL_REMOVED, text=text), None)


def _end_surplus(draft: Draft, model: Model) -> None:
    wanted = draft.wanted[ModelName(model.name)]
    have = draft.counting(model)
    for replica in sorted(have, key=lambda r: _usefulness(draft, model, r))[
        : max(len(have) - wanted, 0)
    ]:
        if wanted == 0:
            idle_s = model.scaling.idle_timeout
            text = f"no request for {idle_s:.0f} s, and the model is on demand"
            reason = Reason(code=ReasonCode.IDLE, text=text)
        else:
            text = f"{len(have)} replicas, {wanted} wanted"
            facts = (("have", len(have)), ("wanted", wanted))
            reason = Reason(code=ReasonCode.ABOVE_WANTED, text=text, facts=facts)
        _end(draft, replica, reason, model)


def _usefulness(draft: Draft, model: Model, replica: Replica) -> tuple[int, int, float, float, str]:
    rank = (ReplicaState.PLACING, ReplicaState.STARTING, ReplicaState.READY).index(replica.state)
    used_at_s = replica.last_used_at_s or replica.ready_at_s or replica.created_at_s
    is_fresh = 0 if is_stale(draft.catalog, model, replica) else 1
    return rank, is_fresh, used_at_s, -replica.created_at_s, replica.replica_id


def is_stale(catalog: Catalog, model: Model, replica: Replica) -> bool:
    """The profile was edited since the replica was placed; an unknown fingerprint is not stale."""
    profile = model.profile(replica.profile)
    engine = catalog.engine(profile.engine) if profile else None
    if profile is None or engine is None:
        return True
    return bool(replica.fingerprint) and replica.fingerprint != profile.fingerprint(engine, model)


def _end(draft: Draft, replica: Replica, reason: Reason, model: Model | None) -> None:
    profile = model.profile(replica.profile) if model else None
    draft.ending.add(replica.replica_id)
    if replica.state is not ReplicaState.READY:
        draft.actions.append(StopReplica(replica_id=replica.replica_id, reason=reason))
        return
    timeout_s = profile.drain_timeout if profile else _DRAIN_TIMEOUT_S
    draft.actions.append(
        DrainReplica(
            replica_id=replica.replica_id,
            deadline_at_s=draft.now_s + timeout_s,
            reason=reason,
        )
    )
