"""The one writer of the fleet: reports and decisions go in, a new FleetView comes out.

Rule 1: nobody else changes a node or a replica; readers take `view()`, which never changes.
Rule 2: a report of an older session or an older epoch changes nothing.
Rule 3: a node reports its shards whole; a shard that it should run and does not report is gone.
Rule 4: everything that a person could ask about is a `Change`, taken by the loop as an event.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from llmgw_common.ids import ModelName, NodeId, ReplicaId, ShardId
from llmgw_common.protocol.facts import NodeFacts, ShardError, ShardReport
from llmgw_common.protocol.messages import Heartbeat, Register
from llmgw_common.reason import ReasonCode
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import (
    Failures,
    FleetView,
    Node,
    NodeState,
    Replica,
    Shard,
)
from llmgw_server.fleet.node_state import Patience, derive_node
from llmgw_server.fleet.replica_state import derive, enter
from llmgw_server.fleet.reports import node_with_facts, replica_from, shard_from

#: A replica that has been ready this long clears its model's failure count (design: scale up).
FAILURES_CLEARED_AFTER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happened to a node or replica, for the event log."""

    object_kind: str
    object_id: str
    code: str
    text: str
    facts: tuple[tuple[str, str | int | float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Which of a node's reported shards belong to a replica that the server knows now."""

    claimed: tuple[ShardId, ...]
    unclaimed: tuple[ShardId, ...]


class FleetRegistry:
    """Holds what is; see the module's rules."""

    def __init__(self, started_at_s: float) -> None:
        self._started_at_s = started_at_s
        self._nodes: dict[NodeId, Node] = {}
        self._replicas: dict[ReplicaId, Replica] = {}
        self._unclaimed: dict[ShardId, Shard] = {}
        self._failures: dict[ModelName, Failures] = {}
        self._changes: list[Change] = []
        self._view: FleetView | None = None
        #: Something moved that a pass could act on; cleared by the loop when it begins one.
        self.needs_pass = True

    # --- reading ---------------------------------------------------------------------------------

    def view(self) -> FleetView:
        """Return the fleet as it is now; the same object until something changes."""
        if self._view is None:
            self._view = FleetView(
                nodes=dict(self._nodes),
                replicas=dict(self._replicas),
                unclaimed=tuple(self._unclaimed.values()),
                failures=dict(self._failures),
                started_at_s=self._started_at_s,
            )
        return self._view

    def take_changes(self) -> list[Change]:
        """Return what happened since the last call, oldest first."""
        taken, self._changes = self._changes, []
        return taken

    def note(self, change: Change) -> None:
        """Add something worth an event that no report brought."""
        self._changes.append(change)

    # --- nodes -----------------------------------------------------------------------------------

    def enroll(self, node: Node) -> None:
        """Add a node that is enrolled, or change its name, addresses and enrolled labels."""
        known = self._nodes.get(node.node_id)
        if known:
            node = replace(
                known,
                name=node.name,
                addresses=node.addresses,
                enrolled_labels=node.enrolled_labels,
                is_cordoned=node.is_cordoned,
            )
        self._put_node(node)
        self.needs_pass = True

    def cordon(self, node_id: NodeId, *, is_cordoned: bool) -> None:
        """Place nothing new on the node, or again."""
        node = self._nodes[node_id]
        if node.is_cordoned != is_cordoned:
            self._put_node(replace(node, is_cordoned=is_cordoned))
            self.needs_pass = True

    def remove_node(self, node_id: NodeId, now_s: float) -> None:
        """Forget the node and every shard on it.

        Replicas that lose a shard fail at once, so that others are placed in the same pass. It was
        an operator's doing and no fault of the model: its count of failures stays as it was.
        """
        self._nodes.pop(node_id, None)
        self._unclaimed = {k: s for k, s in self._unclaimed.items() if s.node_id != node_id}
        for replica in list(self._replicas.values()):
            kept = tuple(s for s in replica.shards if s.node_id != node_id)
            if len(kept) == len(replica.shards):
                continue
            failures = self._failures.get(replica.model)
            self.fail_replica(replica.replica_id, "its node was removed", now_s)
            if failures is None:
                self._failures.pop(replica.model, None)
            else:
                self._failures[replica.model] = failures
            failed = self._replicas[replica.replica_id]
            self._put(replace(failed, shards=kept), now_s)
        self._view = None
        self.needs_pass = True

    def register(self, node_id: NodeId, session: int, hello: Register, now_s: float) -> Claims:
        """Take a node's first report of a session: adopt what it runs, answer what is claimed."""
        node = self._heard(node_id, hello.node, now_s)
        self._put_node(
            replace(node, session=session, agent_version=hello.agent_version, weights=hello.weights)
        )
        self._take_reports(node, hello.shards, now_s, is_first=True)
        claimed = {s.shard_id for r in self._replicas.values() for s in r.shards}
        ids = [ShardId(report.shard_id) for report in hello.shards]
        self.needs_pass = True
        return Claims(
            claimed=tuple(i for i in ids if i in claimed),
            unclaimed=tuple(i for i in ids if i not in claimed),
        )

    def heartbeat(self, node_id: NodeId, session: int, beat: Heartbeat, now_s: float) -> None:
        """Take a node's regular whole report."""
        if not self._is_current(node_id, session):
            return
        node = self._heard(node_id, beat.node, now_s)
        self._put_node(node)
        self._take_reports(node, beat.shards, now_s, is_first=False)

    def session_ended(self, node_id: NodeId, session: int) -> None:
        """Note that the node's connection is gone; silence does the rest."""
        if self._is_current(node_id, session):
            self._put_node(replace(self._nodes[node_id], session=0))
            self.needs_pass = True

    def _is_current(self, node_id: NodeId, session: int) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.session == session

    def _heard(self, node_id: NodeId, facts: NodeFacts, now_s: float) -> Node:
        before = self._nodes[node_id]
        node = node_with_facts(before, facts, now_s)
        if before.state is not NodeState.CONNECTED:
            self._note_node(node, before.state)
        return node

    # --- shards ----------------------------------------------------------------------------------

    def report_shard(
        self, node_id: NodeId, session: int, report: ShardReport, now_s: float
    ) -> None:
        """Take one shard's whole status from the session that is current."""
        if self._is_current(node_id, session):
            node = replace(self._nodes[node_id], last_heard_at_s=now_s)
            self._put_node(node)
            self._take_report(node, report, now_s)

    def refuse_shard(self, shard_id: ShardId, epoch: int, text: str, now_s: float) -> None:
        """A node refused to start the shard: it failed."""
        self._fail_shard(shard_id, epoch, "launch", f"the node refused it: {text}", now_s)

    def _take_reports(
        self, node: Node, reports: Iterable[ShardReport], now_s: float, *, is_first: bool
    ) -> None:
        reports = list(reports)
        seen = {(report.shard_id, report.epoch) for report in reports}
        for report in reports:
            self._take_report(node, report, now_s)
        self._unclaimed = {
            k: s
            for k, s in self._unclaimed.items()
            if s.node_id != node.node_id or (k, s.epoch) in seen
        }
        for replica in list(self._replicas.values()):
            for shard in replica.shards:
                is_here = shard.node_id == node.node_id and not shard.is_terminal
                is_waiting = shard.state is ShardState.PENDING and not is_first
                if is_here and not is_waiting and (shard.shard_id, shard.epoch) not in seen:
                    self._missing(shard, now_s)

    def _take_report(self, node: Node, report: ShardReport, now_s: float) -> None:
        shard = shard_from(report, node, now_s)
        replica = self._replicas.get(shard.replica_id)
        if replica is None:
            if shard.holds_resources:
                self._adopt(derive(replica_from(report, shard, now_s), now_s))
            return
        known = next((s for s in replica.shards if s.rank == shard.rank), None)
        if known is None:
            self._unclaimed.pop(shard.shard_id, None)
            self._put(_with_shard(replica, shard, now_s), now_s)
        elif known.shard_id == shard.shard_id and known.node_id == node.node_id:
            if shard.epoch >= known.epoch and not _would_go_back(known, shard):
                self._put(_with_shard(replica, shard, now_s), now_s)
        elif shard.epoch > known.epoch:
            self._unclaimed[known.shard_id] = known
            self._put(_with_shard(replica, shard, now_s), now_s)
        else:
            self._not_claimed(shard)

    def _not_claimed(self, shard: Shard) -> None:
        is_known = shard.shard_id in self._unclaimed
        if shard.holds_resources:
            self._unclaimed[shard.shard_id] = shard
        else:
            self._unclaimed.pop(shard.shard_id, None)
        if is_known != shard.holds_resources:
            self.needs_pass = True
        self._view = None

    def _adopt(self, replica: Replica) -> None:
        self._replicas[replica.replica_id] = replica
        self._view = None
        self.needs_pass = True
        shard = replica.shards[0]
        self._changes.append(
            Change(
                object_kind="replica",
                object_id=replica.replica_id,
                code=ReasonCode.ADOPTED.value,
                text=f"{replica.model}: adopted what node {shard.node_id} reports running",
                facts=(("model", replica.model), ("pid", shard.pid or 0)),
            )
        )

    def _missing(self, shard: Shard, now_s: float) -> None:
        if shard.state is ShardState.STOPPING:
            replica = self._replicas[shard.replica_id]
            gone = replace(shard, state=ShardState.STOPPED, since_at_s=now_s)
            self._put(_with_shard(replica, gone, now_s), now_s)
        else:
            self._fail_shard(
                shard.shard_id, shard.epoch, "watch", "the node no longer reports it", now_s
            )

    def _fail_shard(
        self, shard_id: ShardId, epoch: int, step: str, text: str, now_s: float
    ) -> None:
        for replica in list(self._replicas.values()):
            for shard in replica.shards:
                if shard.shard_id == shard_id and shard.epoch == epoch and not shard.is_terminal:
                    failed = replace(
                        shard,
                        state=ShardState.FAILED,
                        since_at_s=now_s,
                        fetch=None,
                        error=ShardError(step=step, text=text),
                    )
                    self._put(_with_shard(replica, failed, now_s), now_s)

    # --- replicas --------------------------------------------------------------------------------

    def add_replica(self, replica: Replica) -> None:
        """Add a replica that was just placed."""
        self._replicas[replica.replica_id] = replica
        self._view = None
        self._note_replica(replica, "placed", replica.reason.text if replica.reason else "")

    def drain_replica(
        self, replica_id: ReplicaId, deadline_at_s: float, why: str, now_s: float
    ) -> None:
        """Begin to drain: no new requests; stopped at the deadline at the latest."""
        replica = self._replicas[replica_id]
        if replica.is_terminal or replica.state is ReplicaState.DRAINING:
            return
        drained = enter(replica, ReplicaState.DRAINING, why, now_s)
        drained = replace(drained, draining_at_s=now_s, drain_deadline_at_s=deadline_at_s)
        self._put(drained, now_s)

    def fail_replica(self, replica_id: ReplicaId, why: str, now_s: float) -> None:
        """Mark the replica failed; the first error is kept."""
        replica = self._replicas[replica_id]
        if not replica.is_terminal:
            failed = enter(replica, ReplicaState.FAILED, why, now_s)
            self._put(replace(failed, error=replica.error or why), now_s)

    def forget_replica(self, replica_id: ReplicaId) -> None:
        """Drop a terminal replica."""
        self._replicas.pop(replica_id, None)
        self._view = None

    def note_use(self, last_used_at_s: Mapping[ReplicaId, float]) -> None:
        """Remember when requests last ended on replicas; never moves back."""
        for replica_id, at_s in last_used_at_s.items():
            replica = self._replicas.get(replica_id)
            if replica and (replica.last_used_at_s or 0.0) < at_s:
                self._replicas[replica_id] = replace(replica, last_used_at_s=at_s)
                self._view = None

    # --- the passing of time ---------------------------------------------------------------------

    def excuse_silence(self, gap_s: float, now_s: float) -> None:
        """This server was paused for `gap_s` and could hear nobody: nobody was silent meanwhile."""
        for node in list(self._nodes.values()):
            if node.last_heard_at_s is not None:
                heard_at_s = min(node.last_heard_at_s + gap_s, now_s)
                self._put_node(replace(node, last_heard_at_s=heard_at_s))

    def observe(self, patience: Patience, now_s: float) -> None:
        """Step 1 of a pass: nodes that went silent, drains that ended, counts to clear."""
        for node in list(self._nodes.values()):
            derived = derive_node(node, patience, now_s)
            if derived is not node:
                self._put_node(derived)
                self._note_node(derived, node.state)
        for replica in list(self._replicas.values()):
            self._put(_finish_drain(replica, now_s), now_s)
            if (
                replica.model in self._failures
                and replica.state is ReplicaState.READY
                and replica.ready_at_s is not None
                and now_s - replica.ready_at_s >= FAILURES_CLEARED_AFTER_S
            ):
                del self._failures[replica.model]
                self._view = None

    # --- writing ---------------------------------------------------------------------------------

    def _put_node(self, node: Node) -> None:
        self._nodes[node.node_id] = node
        self._view = None

    def _put(self, replica: Replica, now_s: float) -> None:
        before = self._replicas.get(replica.replica_id)
        replica = derive(replica, now_s)
        if before is replica:
            return
        self._replicas[replica.replica_id] = replica
        self._view = None
        if before is None or _shard_states(before) != _shard_states(replica):
            self.needs_pass = True
        if before is None or before.state is replica.state:
            return
        self.needs_pass = True
        why = replica.error if replica.state is ReplicaState.FAILED else replica.story[-1].why
        if replica.state is ReplicaState.FAILED:
            self._count_failure(replica)
        self._note_replica(replica, replica.state.value, why)

    def _count_failure(self, replica: Replica) -> None:
        known = self._failures.get(replica.model)
        self._failures[replica.model] = Failures(
            in_a_row=(known.in_a_row if known else 0) + 1,
            last_at_s=replica.since_at_s,
            last_error=replica.error,
            had_served=replica.ready_at_s is not None,
        )

    def clear_failures(self, model: ModelName) -> None:
        """Forget a model's failures, as a changed profile or an operator's restart asks for."""
        if self._failures.pop(model, None):
            self._view = None

    def _note_replica(self, replica: Replica, code: str, text: str) -> None:
        facts: list[tuple[str, str | int | float]] = [
            ("model", replica.model),
            ("profile", replica.profile),
            ("attempt", replica.attempt),
        ]
        broken = next((s for s in replica.shards if s.error), None)
        if broken and broken.error and replica.state is ReplicaState.FAILED:
            facts.append(("kind", broken.error.kind))
            if broken.error.log_tail:
                facts.append(("log_tail", "\n".join(broken.error.log_tail[-8:])))
        self._changes.append(
            Change(
                object_kind="replica",
                object_id=replica.replica_id,
                code=code,
                text=f"{replica.model}: {text}" if text else replica.model,
                facts=tuple(facts),
            )
        )

    def _note_node(self, node: Node, before: NodeState) -> None:
        self._changes.append(
            Change(
                object_kind="node",
                object_id=node.node_id,
                code=node.state.value,
                text=f"node {node.name} is {node.state.value} (was {before.value})",
            )
        )


def _shard_states(replica: Replica) -> list[tuple[int, ShardState]]:
    return [(shard.rank, shard.state) for shard in replica.shards]


def _would_go_back(known: Shard, shard: Shard) -> bool:
    """Within one epoch nothing leaves a final state: a late report changes nothing."""
    if shard.epoch != known.epoch or not known.is_terminal:
        return False
    return not (known.state is ShardState.FAILED and shard.state is ShardState.STOPPED)


def _with_shard(replica: Replica, shard: Shard, now_s: float) -> Replica:
    others = tuple(s for s in replica.shards if s.rank != shard.rank)
    known = next((s for s in replica.shards if s.rank == shard.rank), None)
    has_moved = known is None or (known.state, known.fetch) != (shard.state, shard.fetch)
    return replace(
        replica,
        shards=tuple(sorted((*others, shard), key=lambda s: s.rank)),
        progress_at_s=now_s if has_moved else replica.progress_at_s,
    )


def _finish_drain(replica: Replica, now_s: float) -> Replica:
    if replica.state is not ReplicaState.DRAINING:
        return replica
    if any(shard.holds_resources for shard in replica.shards):
        return replica
    return enter(replica, ReplicaState.STOPPED, "all its shards are stopped", now_s)
