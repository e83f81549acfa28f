"""The agents' websocket against a hostile or broken peer, over real sockets."""

import json

import httpx
import pytest
import websockets
from websockets.sync.client import connect

from llmgw_common.api.models import JoinTokenRequest
from llmgw_common.protocol.codec import decode_from_server, encode
from llmgw_common.protocol.messages import Sync, Term, Welcome
from tests.builders import make_facts, make_heartbeat, make_register, make_report
from tests.harness import Fleet, eventually


@pytest.fixture
def fleet(tmp_path):
    # Short limits: the tests wait for some of them.
    found = Fleet(tmp_path, channel={"heartbeat": "200ms", "read_idle": "2s", "ack": "1s"})
    try:
        found.start_server()
        yield found
    finally:
        found.close()


@pytest.fixture
def credential(fleet):
    with fleet.api() as api:
        token = api.create_join_token(JoinTokenRequest(labels={"rack": "r7"})).text
    body = {"token": token, "node_name": "n1", "addresses": ["127.0.0.1"]}
    return httpx.post(f"{fleet.url}/agent/v1/join", json=body).json()["credential"]


def open_channel(fleet, credential, **headers):
    url = f"ws://127.0.0.1:{fleet.port}/agent/v1/connect"
    found = {"authorization": f"Bearer {credential}"} | headers
    return connect(url, additional_headers=found, proxy=None, close_timeout=1)


def register(channel, *reports, **fields):
    channel.send(encode(make_register(*reports, **fields)))
    welcome = decode_from_server(channel.recv(5))
    assert isinstance(welcome, Welcome)
    sync = decode_from_server(channel.recv(5))
    assert isinstance(sync, Sync)
    return welcome, sync


def closed(channel):
    with pytest.raises(websockets.ConnectionClosed) as caught:
        while True:
            channel.recv(10)
    assert caught.value.rcvd is not None
    return caught.value.rcvd


def test_a_node_registers_and_is_shown_with_the_labels_of_its_token(fleet, credential):
    with open_channel(fleet, credential) as channel:
        welcome, _ = register(channel, node=make_facts(gpus=2, labels={"zone": "a"}))
        assert welcome.node_name == "n1"
        assert welcome.term.counter >= 1
        with fleet.api() as api:
            node = api.node("n1")
        assert node.state == "connected"
        assert node.labels == {"rack": "r7", "zone": "a"}
        assert len(node.gpus) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer llmgw-node-wrong"},
        {"authorization": "Basic abc"},
        {"authorization": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_strangers_and_browsers_are_refused_before_the_websocket_opens(fleet, credential, headers):
    with (
        pytest.raises(websockets.InvalidStatus) as caught,
        open_channel(fleet, credential, **headers),
    ):
        pass
    assert caught.value.response.status_code == 403


def test_a_gateway_or_admin_key_is_no_node_credential(fleet, credential):
    with pytest.raises(websockets.InvalidStatus), open_channel(fleet, fleet.key):
        pass


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", 1007),
        ('{"type":"ack"}', 1008),
        (encode(make_heartbeat()), 1008),
        (b"\x00\x01", 1003),
        ('{"type":"register","x":"' + "y" * (1 << 20) + '"}', 1009),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_left_and_nobody_else_notices(
    fleet, credential, frame, code
):
    with open_channel(fleet, credential) as channel:
        channel.send(frame)
        assert closed(channel).code == code
    assert httpx.get(f"{fleet.url}/readyz").status_code == 200


def test_an_agent_from_the_future_is_told_to_be_upgraded_or_to_upgrade(fleet, credential):
    with open_channel(fleet, credential) as channel:
        channel.send(encode(make_register(protocol_min=7, protocol_max=9)))
        assert "upgrade" in closed(channel).reason


def test_unknown_messages_and_fields_of_a_newer_agent_are_ignored(fleet, credential):
    with open_channel(fleet, credential) as channel:
        welcome, _ = register(channel)
        channel.send('{"type":"from_the_future","id":"1"}')
        beat = json.loads(encode(make_heartbeat(session=welcome.session)))
        channel.send(json.dumps(beat | {"new_field": 1}))
        answer = decode_from_server(channel.recv(5))
        assert answer is not None
        assert answer.type == "heartbeat_ack"


def test_a_silent_agent_is_left_and_soon_suspect(fleet, credential):
    with open_channel(fleet, credential) as channel:
        register(channel)
        assert "silent" in closed(channel).reason


def test_a_reconnect_of_the_same_agent_replaces_its_half_open_predecessor(fleet, credential):
    with open_channel(fleet, credential) as old:
        first, _ = register(old)
        with open_channel(fleet, credential) as new:
            second, _ = register(new)
            assert second.session > first.session
            assert "replaced" in closed(old).reason


def test_another_agent_with_the_same_credential_is_refused_with_an_event(fleet, credential):
    with open_channel(fleet, credential) as first:
        register(first)
        with open_channel(fleet, credential) as clone:
            clone.send(encode(make_register(instance="ins-other")))
            assert "another agent process" in closed(clone).reason

    def told():
        with fleet.api() as api:
            return any(e.code == "cloned" for e in api.events())

    eventually(told, what="the event")


def test_the_server_climbs_above_the_highest_term_an_agent_has_seen(fleet, credential):
    seen = Term(counter=70, leader_id="another")
    with open_channel(fleet, credential) as channel:
        welcome, _ = register(channel, term_seen=seen)
    assert welcome.term.counter > 70


def test_a_node_cannot_point_an_endpoint_at_another_host(fleet, credential):
    report = make_report(url="http://10.0.0.9:20000", wanted_shards=1)
    with open_channel(fleet, credential) as channel:
        _, sync = register(channel, report)
        assert sync.claimed == ("rep-1-s0",)
        with fleet.api() as api:
            (replica,) = api.replicas()
        assert replica.shards[0].url == ""


def test_a_removed_node_is_dropped_at_once_and_cannot_come_back(fleet, credential):
    with open_channel(fleet, credential) as channel:
        register(channel)
        with fleet.api() as api:
            api.remove_node("n1")
        assert "removed" in closed(channel).reason
    with pytest.raises(websockets.InvalidStatus), open_channel(fleet, credential):
        pass


def test_a_command_that_is_not_acked_ends_the_session(fleet, credential):
    with open_channel(fleet, credential) as channel:
        welcome, _ = register(channel, node=make_facts(gpus=1))
        fleet.apply(
            {
                "engines": [{"name": "sim", "kind": "simulated"}],
                "models": [{"name": "m", "profiles": [{"name": "p", "engine": "sim"}]}],
            }
        )
        with pytest.raises(websockets.ConnectionClosed) as caught:
            while True:
                channel.send(encode(make_heartbeat(session=welcome.session, node=make_facts(1))))
                channel.recv(1)
        assert caught.value.rcvd is not None
        assert "no ack of start_shard" in caught.value.rcvd.reason
