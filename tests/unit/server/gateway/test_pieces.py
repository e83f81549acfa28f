"""The small pure pieces of the request path."""

import asyncio
import contextlib
import itertools
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_common.api_keys import digest, mint_key
from llmgw_common.ids import KeyId
from llmgw_server.gateway.account import Accounts
from llmgw_server.gateway.auth import ConflictingKeysError, KeyRecord, KeyRing, credential_of
from llmgw_server.gateway.balance import FAILURE_S, Balance
from llmgw_server.gateway.errors import Refusal, body_of, event_of
from llmgw_server.gateway.peek import for_engine, peek
from llmgw_server.gateway.sse import Usage, UsageFilter, UsageTail, first_error
from llmgw_server.gateway.table import RouteTable
from tests.gateway_harness import RecordingSink, route, target
from tests.scripted_engine import DONE, USAGE, event, token

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def key_record(text, **fields):
    defaults = {"key_id": KeyId("k"), "name": "n", "role": "client", "digest": digest(text)}
    return KeyRecord(**(defaults | fields))


def test_a_key_is_found_by_its_text_until_it_expires_or_is_disabled():
    text = mint_key()
    until = NOW + timedelta(hours=1)
    ring = KeyRing.of([key_record(text, expires_at=until)])
    assert ring.find(text, NOW) is not None
    assert ring.find(text, until) is None
    assert ring.find(mint_key(), NOW) is None
    assert KeyRing.of([key_record(text, is_disabled=True)]).find(text, NOW) is None


def test_a_key_may_call_its_models_by_name_or_alias():
    record = key_record("x", models=frozenset({"gpt-4o"}))
    assert record.may_call("gpt-4o", "llama")
    assert not record.may_call("llama")
    assert key_record("x").may_call("anything")


def test_no_digest_is_in_a_repr():
    assert "digest" not in repr(key_record("x"))


@pytest.mark.parametrize(
    ("authorization", "api_key", "found"),
    [
        ([], [], None),
        (["Bearer a"], [], "a"),
        (["bearer  a "], [], "a"),
        ([], [" a "], "a"),
        (["Bearer a"], ["a"], "a"),
        (["Basic a"], [], None),
        (["Bearer"], [""], None),
    ],
)
def test_one_credential_is_taken_whatever_its_form(authorization, api_key, found):
    assert credential_of(authorization, api_key) == found


def test_two_different_credentials_are_refused():
    with pytest.raises(ConflictingKeysError):
        credential_of(["Bearer a"], ["b"])


@given(
    fields=st.dictionaries(
        st.text(max_size=8).filter(lambda k: k not in ("model", "stream", "stream_options")),
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    ),
    stream=st.booleans(),
)
def test_a_rewritten_body_keeps_every_other_field(fields, stream):
    body = json.dumps({"model": "alias", "stream": stream} | fields).encode()
    sent, adds = for_engine(body, "/v1/chat/completions", peek(body), "served")
    assert adds is stream
    found = json.loads(sent)
    assert found.pop("model") == "served"
    assert found.pop("stream") is stream
    if stream:
        assert found.pop("stream_options") == {"include_usage": True}
    assert found == fields


def test_other_stream_options_are_kept_beside_ours():
    body = b'{"model":"m","stream":true,"stream_options":{"x":1}}'
    sent, _ = for_engine(body, "/v1/completions", peek(body), "m")
    assert json.loads(sent)["stream_options"] == {"x": 1, "include_usage": True}


def test_apis_without_stream_options_are_left_alone():
    body = b'{"model":"m","stream":true}'
    assert for_engine(body, "/v1/messages", peek(body), "m") == (body, False)


@given(body=st.binary(max_size=100))
def test_whatever_a_body_is_the_outcome_is_a_peek_or_a_400(body):
    with contextlib.suppress(Refusal):
        assert peek(body).model


STREAM = token("日本") + event({"x": "}{"}) + b": c\r\n\r\n" + USAGE + DONE


@given(cuts=st.sets(st.integers(1, len(STREAM) - 1)))
def test_usage_is_found_and_hidden_however_the_stream_is_cut(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    tail, passes, shown = UsageTail(), UsageFilter(), b""
    for begin, end in itertools.pairwise(places):
        tail.feed(STREAM[begin:end])
        shown += passes.feed(STREAM[begin:end])
    shown += passes.finish()
    assert shown == STREAM.replace(USAGE, b"")
    assert tail.usage() == Usage(7, 3)


@given(noise=st.binary(max_size=300))
def test_noise_passes_unchanged_and_has_no_usage(noise):
    passes = UsageFilter()
    assert passes.feed(noise) + passes.finish() == noise
    tail = UsageTail()
    tail.feed(noise)
    assert tail.usage() is None


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', Usage(1, 2)),
        (b'{"usage": {"input_tokens":1,"output_tokens":2,"d":{"x":1}}}', Usage(1, 2)),
        (b'{"usage":null}', None),
        (b'{"usage":{"prompt_tokens":-5}}', Usage(0, 0)),
        (b'{"usage":{"prompt_tokens":1}} {"usage":null}', Usage(1, 0)),
        (b'{"usage":{', None),
    ],
)
def test_usage_is_read_in_every_form_that_engines_send(body, usage):
    tail = UsageTail()
    tail.feed(body)
    assert tail.usage() == usage


@pytest.mark.parametrize(
    ("first", "is_error"),
    [
        (b'data: {"error":{}}\n\n', True),
        (b"event: error\ndata: {}\n\n", True),
        (token("error"), False),
        (b"", False),
    ],
)
def test_an_error_at_the_head_of_a_stream_is_seen(first, is_error):
    assert (first_error(first) is not None) is is_error


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_least_loaded_for_its_weight_is_picked_and_equals_take_turns():
    balance = Balance(Clock())
    a, b, big = target(1, "a"), target(2, "b"), target(3, "big", weight=3.0)
    assert {balance.pick([a, b], ()).replica_id for _ in range(4)} == {"a", "b"}
    balance.begin(a)
    assert all(balance.pick([a, b], ()) is b for _ in range(3))
    balance.begin(b)
    balance.begin(big)
    assert balance.pick([a, b, big], ()) is big
    assert balance.pick([a], {a.key}) is None


def test_a_replica_that_fails_fast_does_not_look_idle_for_a_while():
    clock = Clock()
    balance = Balance(clock)
    bad, good = target(1, "bad"), target(2, "good")
    balance.begin(bad)
    balance.end(bad, has_failed=True)
    for _ in range(4):
        balance.begin(good)
    assert balance.pick([bad, good], ()) is good
    clock.now += FAILURE_S
    assert balance.pick([bad, good], ()) is bad


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.booleans()), max_size=40))
def test_counts_are_never_negative_and_end_at_zero(steps):
    balance = Balance(Clock())
    targets = [target(i, f"rep-{i}") for i in range(3)]
    running = []
    for begins, i, fails in steps:
        if begins:
            balance.begin(targets[i])
            running.append(targets[i])
        elif running:
            balance.end(running.pop(), has_failed=fails)
        assert all(count > 0 for count in balance.in_flight.values())
        assert sum(balance.in_flight.values()) == len(running)
    for found in running:
        balance.end(found, has_failed=False)
    assert balance.in_flight == {}


def test_a_new_epoch_of_a_replica_has_counts_of_its_own():
    balance = Balance(Clock())
    old, new = target(1, epoch=1), target(1, epoch=2)
    balance.begin(old)
    balance.end(new, has_failed=False)
    assert balance.in_flight == {old.key: 1}
    balance.forget({new.key})
    assert balance.in_flight == {old.key: 1}


def test_a_name_wins_over_an_alias_in_the_table():
    table = RouteTable.of(1, [route(name="a", aliases=("b",)), route(name="b")])
    assert table.find("b").name == "b"
    assert table.find("a").name == "a"
    assert table.find("c") is None


def test_errors_have_the_shape_of_the_api_that_was_called():
    refusal = Refusal(status=404, code="model_not_found", message="no", param="model")
    assert json.loads(body_of(refusal, "/v1/chat/completions")) == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert json.loads(body_of(refusal, "/v1/messages")) == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "no"},
    }
    assert event_of(refusal, "/v1/messages").startswith(b"event: error\ndata: ")


async def test_books_that_cannot_be_written_are_kept_and_written_later():
    sink = RecordingSink(fails=True)
    books = Accounts(sink, lambda: NOW)

    def book():
        books.book(
            model="m", key_id="k", replica_id="r", outcome="ok", tokens=(5, 2), is_estimated=False
        )

    book()
    await books.flush()
    book()
    sink.fails = False
    await books.flush()
    (row,) = sink.rows
    assert (row.requests, row.prompt_tokens, row.completion_tokens) == (2, 10, 4)
    await books.flush()
    assert len(sink.rows) == 1
    assert asyncio.get_running_loop().is_running()
