"""Why a model has what it has: the last plan and the fleet, put into lines. Pure.

The rules are the planner's own: nothing is decided here a second time.
"""

from dataclasses import dataclass

from llmgw_common.documents.models import Model
from llmgw_common.ids import ModelName
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import FleetView, Replica, Shard
from llmgw_server.planner.plan import Plan, Unmet
from llmgw_server.planner.policy import Policy
from llmgw_server.planner.reap import start_deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer to "why".

    Attributes:
        lines: what a person reads, most important first.
        unmet: what is missing and why, None if nothing is.
        replicas: the model's replicas, oldest first.
    """

    model: ModelName
    wanted: int
    have: int
    ready: int
    lines: tuple[str, ...]
    unmet: Unmet | None
    replicas: tuple[Replica, ...]


def explain(
    model: Model, fleet: FleetView, plan: Plan, now_s: float, policy: Policy
) -> Explanation:
    """Return why `model` stands as it does at `now_s`, after `plan`."""
    name = ModelName(model.name)
    replicas = fleet.replicas_of(name)
    have = sum(r.counts_toward_wanted for r in replicas)
    ready = sum(r.state is ReplicaState.READY for r in replicas)
    wanted = plan.wanted.get(name, model.scaling.min)
    unmet = plan.unmet.get(name)
    lines = [_headline(model, wanted, have, ready)]
    if unmet:
        lines.append(f"{unmet.missing} missing: {unmet.reason.text}")
        lines.extend(
            f"  node {v.candidate} cannot take {v.profile}: {v.reason.text}" for v in unmet.verdicts
        )
    for replica in replicas:
        lines.extend(_replica_lines(model, replica, fleet, now_s, policy))
    failures = fleet.failures.get(name)
    if failures:
        ago_s = now_s - failures.last_at_s
        lines.append(
            f"failed {failures.in_a_row} times in a row, last {ago_s:.0f} s ago: "
            f"{failures.last_error}"
        )
    return Explanation(
        model=name,
        wanted=wanted,
        have=have,
        ready=ready,
        lines=tuple(lines),
        unmet=unmet,
        replicas=replicas,
    )


def _headline(model: Model, wanted: int, have: int, ready: int) -> str:
    if wanted == 0 and have == 0:
        return f"{model.name} is on demand and nobody asks for it: the next request starts it"
    if ready >= wanted:
        return f"{model.name} serves: {ready} ready, {wanted} wanted"
    return f"{model.name}: {wanted} wanted, {have} there, {ready} ready"


def _replica_lines(
    model: Model, replica: Replica, fleet: FleetView, now_s: float, policy: Policy
) -> list[str]:
    age_s = now_s - replica.since_at_s
    nodes = ", ".join(_node_name(fleet, shard) for shard in replica.shards) or "no node"
    line = f"{replica.replica_id} on {nodes}: {replica.state.value} for {age_s:.0f} s"
    if replica.reason and replica.state is not ReplicaState.READY:
        line += f" (placed because {replica.reason.text})"
    lines = [line]
    if replica.state in (ReplicaState.PLACING, ReplicaState.STARTING):
        left_s = start_deadline_s(replica, model.profile(replica.profile)) - now_s
        steps = ", ".join(_step(shard) for shard in replica.shards)
        lines.append(f"  {steps}; fails in {max(left_s, 0):.0f} s if nothing moves")
    elif replica.state is ReplicaState.DRAINING and replica.drain_deadline_at_s is not None:
        left_s = max(replica.drain_deadline_at_s - now_s, 0)
        lines.append(f"  {replica.story[-1].why}; stopped in {left_s:.0f} s at the latest")
    elif replica.state is ReplicaState.FAILED:
        lines.append(f"  {replica.error}")
        for shard in replica.shards:
            if shard.error:
                lines.extend(f"  | {text}" for text in shard.error.log_tail[-8:])
        left_s = max(policy.retention_s - age_s, 0)
        lines.append(f"  kept for {left_s:.0f} s more so that you can read this")
    return lines


def _node_name(fleet: FleetView, shard: Shard) -> str:
    node = fleet.nodes.get(shard.node_id)
    return node.name if node else shard.node_id


def _step(shard: Shard) -> str:
    if shard.state is ShardState.FETCHING and shard.fetch:
        done, total = shard.fetch.bytes_done, shard.fetch.bytes_total
        share = f" ({min(100 * done // total, 100)} %)" if total else ""
        return f"fetching weights: {done} bytes{share}"
    return shard.step_text or shard.state.value
