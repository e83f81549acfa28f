"""The agent's half of one connection, without a socket."""

import pytest

from llmgw_agent.channel.session import (
    AgentSession,
    Beat,
    Close,
    Joined,
    Keep,
    Obey,
    Send,
    SessionState,
    Synced,
)
from llmgw_common.protocol.messages import Ack, HeartbeatAck, Sync, Term, Welcome
from tests.agent_builders import make_stop

NEW = Term(counter=5, leader_id="L")


def welcome(term=NEW, session=7):
    return Welcome(id="w", session=session, node_id="n", node_name="n1", term=term)


@pytest.fixture
def live():
    session = AgentSession(term=Term(), opened_at_s=100.0)
    session.receive(welcome(), 100.0)
    return session


def test_the_welcome_makes_it_live_after_its_term_is_kept():
    session = AgentSession(term=Term(counter=4, leader_id="K"), opened_at_s=100.0)
    keep, joined = session.receive(welcome(), 100.0)
    assert keep == Keep(NEW)
    assert isinstance(joined, Joined)
    assert session.state is SessionState.LIVE


@pytest.mark.parametrize("seen", [Term(counter=6, leader_id="L"), Term(counter=5, leader_id="X")])
def test_a_server_of_an_older_term_or_a_second_leader_is_left(seen):
    session = AgentSession(term=seen, opened_at_s=100.0)
    (effect,) = session.receive(welcome(), 100.0)
    assert isinstance(effect, Close)
    assert session.state is SessionState.CLOSED


def test_a_command_is_obeyed(live):
    assert live.receive(make_stop(session=7, term=NEW), 101.0) == [
        Obey(make_stop(session=7, term=NEW))
    ]


def test_a_command_of_an_older_term_changes_nothing_and_is_refused(live):
    (effect,) = live.receive(make_stop(session=7, term=Term(counter=4, leader_id="L")), 101.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Ack)
    assert effect.message.is_accepted is False
    assert effect.message.code == "stale_term"


def test_a_higher_term_is_kept_before_its_command_is_obeyed(live):
    higher = Term(counter=9, leader_id="M")
    keep, obey = live.receive(make_stop(session=7, term=higher), 101.0)
    assert keep == Keep(higher)
    assert isinstance(obey, Obey)


def test_a_command_of_another_session_or_before_the_welcome_is_dropped(live):
    assert live.receive(make_stop(session=6, term=NEW), 101.0) == []
    early = AgentSession(term=Term(), opened_at_s=100.0)
    assert early.receive(make_stop(session=0, term=NEW), 101.0) == []
    assert (live.dropped, early.dropped) == (1, 1)


def test_it_beats_at_the_servers_interval(live):
    assert live.tick(104.9) == []
    assert live.tick(105.0) == [Beat(1)]
    live.receive(HeartbeatAck(id="a", session=7, sequence=1), 105.1)
    assert live.tick(105.1) == []
    assert live.tick(110.0) == [Beat(2)]


def test_a_silent_server_is_left_and_nothing_follows(live):
    live.tick(105.0)
    live.tick(110.0)
    (effect,) = live.tick(115.0)
    assert isinstance(effect, Close)
    assert live.tick(120.0) == []
    assert live.receive(welcome(), 121.0) == []


def test_unknown_types_and_a_second_welcome_are_dropped(live):
    assert live.receive(None, 101.0) == []
    assert live.receive(welcome(), 101.0) == []
    assert live.dropped == 2


def test_the_sync_is_told(live):
    sync = Sync(id="s", session=7, claimed=("a",))
    assert live.receive(sync, 101.0) == [Synced(sync)]


def test_the_next_deadline_is_the_beat_or_the_silence(live):
    assert live.next_deadline_s() == 105.0
    assert AgentSession(term=Term(), opened_at_s=1.0).next_deadline_s() == 16.0
