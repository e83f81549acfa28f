"""The server's half of one agent connection, without a socket."""

import itertools

import pytest

from llmgw_common.protocol.messages import (
    Ack,
    HeartbeatAck,
    ShardStateEvent,
    StopShard,
    Sync,
    Term,
    Welcome,
)
from llmgw_server.channel.session import (
    COMMANDS_IN_FLIGHT_MAX,
    Acked,
    ChannelLimits,
    Close,
    Deliver,
    Send,
    ServerSession,
    SessionState,
)
from tests.builders import make_heartbeat, make_register, make_report

TERM = Term(counter=1, leader_id="L")


def open_session() -> ServerSession:
    ids = itertools.count(1)
    return ServerSession(
        session=7, limits=ChannelLimits(), new_id=lambda: f"id-{next(ids)}", opened_at_s=100.0
    )


@pytest.fixture
def live() -> ServerSession:
    session = open_session()
    session.receive(make_register(), 100.0)
    session.welcome(
        Welcome(id="w", session=7, node_id="n", node_name="n", term=TERM), Sync(id="s", session=7)
    )
    return session


def stop(command_id="c1") -> StopShard:
    return StopShard(id=command_id, session=7, term=TERM, shard_id="s", replica_id="r", epoch=1)


def test_the_first_message_must_be_register():
    (effect,) = open_session().receive(make_heartbeat(), 101.0)
    assert isinstance(effect, Close)
    assert "before register" in effect.text


def test_a_connection_that_never_registers_is_ended():
    session = open_session()
    assert session.tick(109.9) == []
    (effect,) = session.tick(110.0)
    assert isinstance(effect, Close)


def test_an_agent_of_a_protocol_that_nobody_here_speaks_is_told_both_ranges():
    (effect,) = open_session().receive(make_register(protocol_min=5, protocol_max=6), 101.0)
    assert isinstance(effect, Close)
    assert "5 to 6" in effect.text
    assert "upgrade" in effect.text


def test_register_is_delivered_and_the_welcome_makes_it_live():
    session = open_session()
    (effect,) = session.receive(make_register(), 101.0)
    assert isinstance(effect, Deliver)
    assert session.state is SessionState.REGISTERED
    sent = session.welcome(
        Welcome(id="w", session=7, node_id="n", node_name="n", term=TERM), Sync(id="s", session=7)
    )
    assert [type(e.message) for e in sent] == [Welcome, Sync]
    assert session.state is SessionState.LIVE


def test_a_heartbeat_is_delivered_and_answered(live):
    delivered, answer = live.receive(make_heartbeat(session=7, sequence=4), 101.0)
    assert isinstance(delivered, Deliver)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, HeartbeatAck)
    assert answer.message.sequence == 4


def test_a_message_of_another_session_is_dropped_and_counted(live):
    late = ShardStateEvent(id="x", session=6, shard=make_report())
    assert live.receive(late, 101.0) == []
    assert live.dropped == 1


def test_a_message_of_an_unknown_type_is_ignored_and_counted(live):
    assert live.receive(None, 101.0) == []
    assert live.dropped == 1


def test_a_command_is_sent_and_its_ack_ends_the_wait(live):
    (sent,) = live.command(stop(), 101.0)
    assert isinstance(sent, Send)
    (acked,) = live.receive(Ack(id="a", session=7, re="c1", is_accepted=False, text="no"), 102.0)
    assert isinstance(acked, Acked)
    assert acked.ack.text == "no"
    assert live.tick(107.0) == []


def test_a_missed_ack_ends_the_session_though_heartbeats_come(live):
    live.command(stop(), 101.0)
    live.receive(make_heartbeat(session=7), 105.0)
    assert live.next_deadline_s() == 106.0
    (effect,) = live.tick(106.0)
    assert isinstance(effect, Close)
    assert "stop_shard" in effect.text


def test_an_ack_of_nothing_is_dropped(live):
    assert live.receive(Ack(id="a", session=7, re="??", is_accepted=True), 101.0) == []
    assert live.dropped == 1


def test_silence_ends_the_session(live):
    live.receive(make_heartbeat(session=7), 105.0)
    assert live.tick(119.9) == []
    (effect,) = live.tick(120.0)
    assert isinstance(effect, Close)
    assert live.state is SessionState.CLOSED


def test_a_closed_session_says_and_hears_nothing(live):
    live.closed()
    assert live.receive(make_heartbeat(session=7), 101.0) == []
    assert live.command(stop(), 101.0) == []
    assert live.tick(1e9) == []
    assert live.next_deadline_s() is None


def test_register_twice_is_a_fault(live):
    (effect,) = live.receive(make_register(), 101.0)
    assert isinstance(effect, Close)


def test_too_many_commands_without_an_ack_end_the_session(live):
    for i in range(COMMANDS_IN_FLIGHT_MAX):
        live.command(stop(f"c{i}"), 101.0)
    (effect,) = live.command(stop("one more"), 101.0)
    assert isinstance(effect, Close)
