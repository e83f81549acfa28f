"""A shard's status and its moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.supervisor.shard import (
    InvalidMoveError,
    ShardStatus,
    failed,
    fetched,
    moved,
    report,
)
from llmgw_common.protocol.facts import ShardError
from llmgw_common.states import SHARD_MOVES, ShardState
from tests.agent_builders import make_start, make_status

S = ShardState


@given(steps=st.lists(st.sampled_from(list(S)), max_size=12))
def test_only_the_moves_of_the_table_are_made_and_nothing_leaves_stopped(steps):
    status: ShardStatus = make_status()
    for at_s, state in enumerate(steps):
        if state in SHARD_MOVES[status.state]:
            status = moved(status, state, float(at_s))
            assert status.state is state
        else:
            with pytest.raises(InvalidMoveError):
                moved(status, state, float(at_s))
    if S.STOPPED in steps and status.state is S.STOPPED:
        assert SHARD_MOVES[status.state] == frozenset()


@given(progress=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=20))
def test_bytes_of_weights_never_go_back_nor_beyond_the_total(progress):
    status = moved(make_status(), S.FETCHING, 1.0)
    last = 0
    for done, total in progress:
        status = fetched(status, done, total)
        assert status.fetch is not None
        assert status.fetch.bytes_done >= last
        last = status.fetch.bytes_done


def test_progress_is_gone_when_fetching_is_over():
    status = fetched(moved(make_status(), S.FETCHING, 1.0), 5, 10)
    assert moved(status, S.STARTING, 2.0).fetch is None
    assert fetched(make_status(), 5, 10).fetch is None


def test_the_first_error_stays():
    first, second = (ShardError(step="launch", text=text) for text in ("first", "second"))
    status = failed(failed(make_status(), first, 1.0), second, 2.0)
    assert status.error == first


def test_a_report_holds_ages_and_all_that_adoption_needs():
    status = moved(make_status(created_at_s=10.0, host="127.0.0.1", port=20000), S.READY, 15.0)
    found = report(status, 20.0)
    assert (found.created_s, found.since_s, found.ready_s) == (10.0, 5.0, 5.0)
    assert found.url == "http://127.0.0.1:20000"
    assert found.fingerprint == "f"
    assert found.access_key.get_secret_value() == "engine-key"
    assert "engine-key" not in repr(found)


def test_only_the_leader_has_a_url():
    status = make_status(command=make_start(rank=1), host="127.0.0.1", port=20000)
    assert report(status, 1.0).url == ""
