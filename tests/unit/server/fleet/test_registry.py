"""The fleet's one writer: reports in, views out."""

import pytest

from llmgw_common.ids import NodeId, ShardId
from llmgw_common.protocol.facts import FetchProgress, ShardError
from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import NodeState
from llmgw_server.fleet.node_state import Patience
from llmgw_server.fleet.registry import FAILURES_CLEARED_AFTER_S, FleetRegistry
from tests.builders import (
    make_facts,
    make_heartbeat,
    make_node,
    make_register,
    make_replica,
    make_report,
)

S = ShardState
N1 = NodeId("node-n1")


@pytest.fixture
def registry() -> FleetRegistry:
    registry = FleetRegistry(started_at_s=0.0)
    registry.enroll(make_node(state=NodeState.EXPECTED, last_heard_at_s=None, session=0))
    return registry


def only_replica(registry):
    (replica,) = registry.view().replicas.values()
    return replica


def test_a_registered_node_is_connected_with_its_facts(registry):
    registry.register(N1, 3, make_register(node=make_facts(gpus=2)), 10.0)
    node = registry.view().nodes[N1]
    assert node.state is NodeState.CONNECTED
    assert len(node.gpus) == 2
    assert node.session == 3


def test_enrolled_labels_win_over_those_the_node_reports(registry):
    registry.enroll(make_node(enrolled_labels={"pool": "a"}))
    hello = make_register(node=make_facts(labels={"pool": "b", "rack": "r7"}))
    registry.register(N1, 1, hello, 10.0)
    assert registry.view().nodes[N1].labels == {"pool": "a", "rack": "r7"}


def test_a_running_shard_nobody_knows_is_adopted_and_ready_at_once_when_whole(registry):
    claims = registry.register(N1, 1, make_register(make_report(ready_s=30.0)), 100.0)
    replica = only_replica(registry)
    assert replica.state is ReplicaState.READY
    assert replica.ready_at_s == 70.0
    assert not replica.is_adopted
    assert claims.claimed == ("rep-1-s0",)


def test_half_a_gang_is_adopted_and_waits_for_the_other_half(registry):
    registry.enroll(make_node("n2", node_id=NodeId("node-n2")))
    registry.register(N1, 1, make_register(make_report(wanted_shards=2)), 100.0)
    assert only_replica(registry).state is ReplicaState.STARTING
    other = make_report(rank=1, wanted_shards=2)
    registry.register(NodeId("node-n2"), 2, make_register(other), 101.0)
    assert only_replica(registry).state is ReplicaState.READY


def test_an_ended_shard_nobody_knows_is_not_adopted(registry):
    registry.register(N1, 1, make_register(make_report(S.FAILED)), 100.0)
    assert not registry.view().replicas


def test_an_endpoint_outside_the_nodes_own_addresses_and_ports_is_dropped(registry):
    for url in (
        "http://10.0.0.9:20000",
        "http://127.0.0.1:80",
        "https://127.0.0.1:20000",
        "http://x@127.0.0.1:20000",
        "http://127.0.0.1:20000/elsewhere",
        "http://127.0.0.1:99999",
    ):
        registry.register(N1, 1, make_register(make_report(url=url)), 1.0)
        assert only_replica(registry).endpoint == "", url


def test_a_node_cannot_move_its_addresses_by_a_report(registry):
    hello = make_register(node=make_facts(addresses=("10.9.9.9",)))
    registry.register(N1, 1, hello, 1.0)
    assert registry.view().nodes[N1].addresses == ("127.0.0.1",)


def test_a_report_of_an_older_session_changes_nothing(registry):
    registry.register(N1, 1, make_register(make_report(S.LOADING)), 1.0)
    registry.register(N1, 2, make_register(make_report(S.LOADING)), 2.0)
    registry.report_shard(N1, 1, make_report(S.READY), 3.0)
    registry.heartbeat(N1, 1, make_heartbeat(make_report(S.READY)), 3.0)
    assert only_replica(registry).state is ReplicaState.STARTING


def test_a_report_of_an_older_epoch_changes_nothing(registry):
    registry.register(N1, 1, make_register(make_report(S.LOADING, epoch=2)), 1.0)
    registry.report_shard(N1, 1, make_report(S.READY, epoch=1), 2.0)
    assert only_replica(registry).shards[0].state is S.LOADING


def test_a_late_report_does_not_bring_a_failed_shard_back(registry):
    registry.register(N1, 1, make_register(make_report(S.LOADING)), 1.0)
    registry.report_shard(N1, 1, make_report(S.FAILED), 2.0)
    registry.report_shard(N1, 1, make_report(S.READY), 3.0)
    assert only_replica(registry).shards[0].state is S.FAILED


def test_another_shard_of_a_rank_with_a_newer_epoch_takes_the_place(registry):
    registry.register(N1, 1, make_register(make_report(S.READY)), 1.0)
    newer = make_report(S.LOADING, shard_id="other", epoch=2, port=20005, url="")
    registry.heartbeat(N1, 1, make_heartbeat(make_report(S.READY), newer), 2.0)
    assert only_replica(registry).shards[0].shard_id == "other"
    assert [s.shard_id for s in registry.view().unclaimed] == ["rep-1-s0"]


def test_a_shard_that_its_node_no_longer_reports_has_failed(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.heartbeat(N1, 1, make_heartbeat(), 2.0)
    replica = only_replica(registry)
    assert replica.state is ReplicaState.FAILED
    assert "no longer reports it" in replica.error


def test_a_shard_that_was_stopping_and_is_no_longer_reported_is_stopped(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.drain_replica(only_replica(registry).replica_id, 60.0, "test", 2.0)
    registry.heartbeat(N1, 1, make_heartbeat(make_report(S.STOPPING)), 3.0)
    registry.heartbeat(N1, 1, make_heartbeat(), 4.0)
    registry.observe(Patience(), 4.0)
    assert only_replica(registry).state is ReplicaState.STOPPED


def test_a_heartbeat_that_crossed_the_start_command_does_not_fail_the_shard(registry):
    registry.register(N1, 1, make_register(), 1.0)
    registry.add_replica(make_replica(S.PENDING))
    registry.heartbeat(N1, 1, make_heartbeat(), 2.0)
    assert only_replica(registry).state is ReplicaState.STARTING


def test_a_start_command_that_never_arrived_fails_at_the_next_register(registry):
    registry.register(N1, 1, make_register(), 1.0)
    registry.add_replica(make_replica(S.PENDING))
    registry.register(N1, 2, make_register(), 2.0)
    assert only_replica(registry).state is ReplicaState.FAILED


def test_a_refused_shard_fails_its_replica_with_the_nodes_words(registry):
    registry.register(N1, 1, make_register(), 1.0)
    registry.add_replica(make_replica(S.PENDING))
    registry.refuse_shard(ShardId("rep-1-s0"), 1, "engine kind vllm is not allowed", 2.0)
    assert "engine kind vllm is not allowed" in only_replica(registry).error


def test_a_silent_node_becomes_suspect_then_lost(registry):
    registry.register(N1, 1, make_register(), 100.0)
    registry.observe(Patience(), 114.9)
    assert registry.view().nodes[N1].state is NodeState.CONNECTED
    registry.observe(Patience(), 115.0)
    assert registry.view().nodes[N1].state is NodeState.SUSPECT
    registry.observe(Patience(), 160.0)
    assert registry.view().nodes[N1].state is NodeState.LOST


def test_a_pause_of_the_server_itself_is_held_against_no_node(registry):
    registry.register(N1, 1, make_register(), 100.0)
    registry.excuse_silence(600.0, 700.0)
    registry.observe(Patience(), 701.0)
    assert registry.view().nodes[N1].state is NodeState.CONNECTED


def test_fetch_progress_is_shown_only_while_fetching(registry):
    fetch = FetchProgress(source="file:///x", bytes_done=5, bytes_total=10)
    registry.register(N1, 1, make_register(make_report(S.FETCHING, fetch=fetch)), 1.0)
    assert only_replica(registry).shards[0].fetch == fetch
    registry.report_shard(N1, 1, make_report(S.STARTING, fetch=fetch), 2.0)
    assert only_replica(registry).shards[0].fetch is None


def test_failures_are_counted_and_cleared_after_ten_minutes_of_ready(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.report_shard(N1, 1, make_report(S.FAILED, error=_boom()), 2.0)
    failures = registry.view().failures["m"]
    assert (failures.in_a_row, failures.had_served) == (1, True)
    registry.heartbeat(N1, 1, make_heartbeat(make_report(replica="rep-2")), 3.0)
    registry.observe(Patience(lost_after_s=1e9, suspect_after_s=1e9), 3.0)
    registry.observe(
        Patience(lost_after_s=1e9, suspect_after_s=1e9), 3.0 + FAILURES_CLEARED_AFTER_S
    )
    assert not registry.view().failures


def test_a_failure_is_told_with_its_class_and_last_log_lines(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.take_changes()
    registry.report_shard(N1, 1, make_report(S.FAILED, error=_boom()), 2.0)
    (change,) = registry.take_changes()
    assert change.code == "failed"
    assert "exit code 139" in change.text
    assert dict(change.facts)["log_tail"] == "free(): invalid pointer"


def test_removing_a_node_fails_its_replicas_at_once_and_blames_no_model(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.remove_node(N1, 2.0)
    assert not registry.view().nodes
    replica = only_replica(registry)
    assert replica.state is ReplicaState.FAILED
    assert not replica.counts_toward_wanted
    assert replica.error == "its node was removed"
    assert not registry.view().failures


def test_the_view_is_the_same_object_until_something_changes(registry):
    assert registry.view() is registry.view()
    registry.register(N1, 1, make_register(), 1.0)
    before = registry.view()
    registry.report_shard(N1, 1, make_report(), 2.0)
    assert registry.view() is not before
    assert not before.replicas


def test_a_heartbeat_with_no_news_asks_for_no_pass(registry):
    registry.register(N1, 1, make_register(make_report()), 1.0)
    registry.needs_pass = False
    registry.heartbeat(N1, 1, make_heartbeat(make_report()), 2.0)
    assert not registry.needs_pass
    registry.heartbeat(N1, 1, make_heartbeat(make_report(S.FAILED)), 3.0)
    assert registry.needs_pass


def _boom() -> ShardError:
    return ShardError(
        step="watch",
        kind="unknown",
        text="exit code 139",
        signal=11,
        log_tail=("free(): invalid pointer",),
    )
