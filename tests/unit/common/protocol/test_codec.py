"""Frames to messages and back, with the limits."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from llmgw_common.protocol.codec import (
    FRAME_BYTES_MAX,
    PeerProtocolError,
    decode_from_agent,
    decode_from_server,
    encode,
)
from llmgw_common.protocol.messages import EngineSpec, Register, StartShard, StopShard, Term
from tests.builders import make_register, make_report

TERM = Term(counter=3, leader_id="L")


def start(**fields):
    return StartShard(
        id="c",
        session=1,
        term=TERM,
        shard_id="s",
        replica_id="r",
        epoch=1,
        model="m",
        served_model="m",
        source="file:///x",
        profile="p",
        fingerprint="f",
        engine=EngineSpec(name="e", kind="simulated", version="1"),
        port=20000,
        **fields,
    )


def test_register_crosses_the_wire_whole():
    message = make_register(make_report(access_key=SecretStr("engine-key"), ready_s=3.0))
    back = decode_from_agent(encode(message))
    assert back == message
    assert isinstance(back, Register)
    assert back.shards[0].access_key.get_secret_value() == "engine-key"


def test_secrets_cross_the_wire_but_never_a_repr():
    message = start(secrets={"HF_TOKEN": SecretStr("hf_very_secret")})
    back = decode_from_server(encode(message))
    assert isinstance(back, StartShard)
    assert back.secrets["HF_TOKEN"].get_secret_value() == "hf_very_secret"
    assert "hf_very_secret" not in repr(back)


def test_no_trace_key_is_on_the_wire_when_there_is_no_trace():
    assert "trace" not in json.loads(encode(start()))


def test_unknown_fields_are_ignored():
    frame = json.loads(encode(start())) | {"from_the_future": 1}
    assert decode_from_server(json.dumps(frame)) == start()


def test_an_unknown_type_is_no_fault():
    assert decode_from_agent('{"type": "from_the_future", "id": "1"}') is None


def test_a_command_is_not_taken_from_an_agent():
    stop = StopShard(id="c", term=TERM, shard_id="s", replica_id="r", epoch=1)
    assert decode_from_agent(encode(stop)) is None


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", 1007),
        ("[]", 1008),
        ('{"id": "1"}', 1008),
        ('{"type": 3}', 1008),
        ('{"type": "ack"}', 1008),
        ("x" * (FRAME_BYTES_MAX + 1), 1009),
        (b"{}", 1003),
    ],
)
def test_a_bad_frame_is_the_peers_fault_with_the_right_close_code(frame, code):
    with pytest.raises(PeerProtocolError) as caught:
        decode_from_agent(frame)
    assert caught.value.close_code == code


def test_a_fault_names_the_field_and_repeats_no_value():
    with pytest.raises(PeerProtocolError) as caught:
        decode_from_agent('{"type": "ack", "id": "1", "re": {"secret": "hunter2"}}')
    assert "re" in str(caught.value)
    assert "hunter2" not in str(caught.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(body=st.dictionaries(st.text(max_size=8), _json), kind=st.sampled_from(["ack", "register"]))
def test_whatever_a_peer_sends_the_outcome_is_a_message_or_its_fault(body, kind):
    with contextlib.suppress(PeerProtocolError):
        decode_from_agent(json.dumps(body | {"type": kind}))


@given(frame=st.text(max_size=64) | st.binary(max_size=64))
def test_noise_is_always_the_peers_fault(frame):
    with pytest.raises(PeerProtocolError):
        decode_from_agent(frame)
