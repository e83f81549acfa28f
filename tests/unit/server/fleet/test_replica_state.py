"""The eight rules by which shards make a replica's state."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_common.states import ReplicaState, ShardState
from llmgw_server.fleet.model import STORY_LENGTH
from llmgw_server.fleet.replica_state import derive, enter, has_live_evidence
from tests.builders import make_replica, make_shard

S = ShardState


@pytest.mark.parametrize("state", [ReplicaState.DRAINING, ReplicaState.STOPPED])
def test_a_draining_or_stopped_replica_is_left_alone(state):
    replica = make_replica(S.FAILED, state=state)
    assert derive(replica, 5.0) is replica


def test_a_replica_without_shards_is_placing():
    assert derive(make_replica(), 5.0).state is ReplicaState.PLACING


def test_a_failed_shard_fails_the_replica_with_its_error():
    replica = derive(make_replica(S.READY, S.FAILED), 5.0)
    assert replica.state is ReplicaState.FAILED
    assert replica.error == "shard rep-1-s1 failed: exit code 1"


def test_the_first_error_is_kept():
    replica = derive(make_replica(S.FAILED, error="the first"), 5.0)
    assert replica.error == "the first"


def test_a_shard_that_stops_by_itself_fails_the_replica():
    replica = derive(make_replica(S.READY, S.STOPPED), 5.0)
    assert replica.state is ReplicaState.FAILED
    assert "stopped unexpectedly" in replica.error


def test_a_whole_replica_is_no_longer_adopted_and_a_lost_shard_then_fails_it():
    whole = derive(make_replica(S.READY, S.READY, is_adopted=True), 5.0)
    assert not whole.is_adopted
    half = derive(replace(whole, shards=whole.shards[:1]), 6.0)
    assert half.state is ReplicaState.FAILED
    assert half.error == "replica has 1 of 2 shards"


def test_a_replica_is_ready_when_every_wanted_shard_is_and_the_time_is_stamped():
    replica = derive(make_replica(S.READY, S.READY), 5.0)
    assert replica.state is ReplicaState.READY
    assert replica.ready_at_s == 5.0


def test_an_adopted_replica_keeps_the_ready_time_that_its_node_reported():
    replica = derive(make_replica(S.READY, ready_at_s=1.0, is_adopted=True), 5.0)
    assert replica.ready_at_s == 1.0


def test_a_replica_missing_a_shard_is_not_ready():
    half = make_replica(S.READY, wanted_shards=2, is_adopted=True)
    assert derive(half, 5.0).state is ReplicaState.STARTING


def test_nobody_said_how_many_shards_so_those_there_are_enough():
    assert derive(make_replica(S.READY, wanted_shards=0), 5.0).state is ReplicaState.READY


def test_pending_and_starting_prove_nothing():
    assert not has_live_evidence(make_replica(S.PENDING, S.STARTING))
    assert has_live_evidence(make_replica(S.PENDING, S.LOADING))


def test_the_story_keeps_the_last_transitions_only():
    replica = make_replica(S.READY)
    for i in range(STORY_LENGTH + 10):
        replica = enter(replica, ReplicaState.STARTING, f"move {i}", float(i))
    assert len(replica.story) == STORY_LENGTH
    assert replica.story[-1].why == f"move {STORY_LENGTH + 9}"


_shard_lists = st.lists(st.sampled_from(list(S)), max_size=4)


@given(states=_shard_lists, wanted=st.integers(0, 4), adopted=st.booleans())
def test_ready_means_every_wanted_shard_is_ready(states, wanted, adopted):
    replica = make_replica(*states, wanted_shards=wanted, is_adopted=adopted)
    derived = derive(replica, 7.0)
    if derived.state is ReplicaState.READY:
        assert states
        assert len(states) >= wanted
        assert all(state is S.READY for state in states)


@given(states=_shard_lists, wanted=st.integers(0, 4), adopted=st.booleans())
def test_deriving_twice_changes_nothing_more(states, wanted, adopted):
    once = derive(make_replica(*states, wanted_shards=wanted, is_adopted=adopted), 7.0)
    assert derive(once, 8.0) is once


@given(sequence=st.lists(_shard_lists, max_size=8))
def test_a_failed_replica_stays_failed_and_keeps_its_error(sequence):
    replica = make_replica(S.PENDING)
    error = ""
    for at_s, states in enumerate(sequence):
        shards = tuple(make_shard(state, rank) for rank, state in enumerate(states))
        replica = derive(replace(replica, shards=shards), float(at_s))
        if error:
            assert replica.state is ReplicaState.FAILED
            assert replica.error == error
        if replica.state is ReplicaState.FAILED:
            error = replica.error
            assert error
