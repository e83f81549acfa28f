"""What is read of a stream's beginning and end, and how books survive a stop."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_server.gateway.account import Accounts, UsageRow
from llmgw_server.gateway.sse import LOOK_BYTES_MAX, Usage, UsageTail, first_error, wants_more
from tests.gateway_harness import RecordingSink
from tests.scripted_engine import DONE, event, token

ERROR = event({"error": {"message": "too long", "code": 400}})
ANTHROPIC_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (ERROR, 400),
        (b'data:{"error":{"code":"429"}}\n\n', 502),
        (b'data: {"error":{"type":"rate_limit_error"}}\r\n\r\n', 429),
        (ANTHROPIC_ERROR, 503),
        (b"event: error\ndata: not json\n\n", 502),
        (b'data: {"error": null, "choices": []}\n\n', None),
        (token("error"), None),
    ],
)
def test_the_status_of_an_error_event_is_its_code_or_that_of_its_type(head, status):
    found = first_error(head)
    assert (found.status if found else None) == status


@pytest.mark.parametrize("text", [ERROR, ANTHROPIC_ERROR])
def test_an_error_event_is_waited_for_wherever_it_is_cut(text):
    for cut in range(1, len(text)):
        assert wants_more(text[:cut]) or text[:cut].endswith(b"\n\n")
    assert not wants_more(text)


def test_content_is_never_held_back_once_it_cannot_be_an_error():
    assert not wants_more(b'data: {"choices"')
    assert not wants_more(b": ping")
    assert not wants_more(b"event: message_start")
    assert not wants_more(b'data: {"error"' + b" " * LOOK_BYTES_MAX)


@given(st.binary(max_size=200))
def test_whatever_a_stream_begins_with_looking_at_it_never_fails(noise):
    wants_more(noise)
    first_error(noise)
    first_error(b'data: {"error":' + noise)


def test_anthropics_prompt_tokens_come_from_the_first_event_of_a_long_stream():
    tail = UsageTail()
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 11}}}
    tail.feed(b"event: message_start\n" + event(start))
    for _ in range(2000):
        tail.feed(event({"type": "content_block_delta", "delta": {"text": "word"}}))
    tail.feed(event({"type": "message_delta", "usage": {"output_tokens": 2000}}))
    assert tail.usage() == Usage(11, 2000)


@pytest.mark.parametrize(
    ("path", "last", "ending"),
    [
        ("/v1/chat/completions", DONE, "ok"),
        ("/v1/chat/completions", token("[DONE]"), "no_end_marker"),
        ("/v1/messages", event({"type": "message_stop"}), "ok"),
        ("/v1/messages", event({"type": "message_delta"}), "no_end_marker"),
        ("/v1/responses", event({"type": "response.completed"}), "ok"),
        ("/v1/responses", event({"type": "response.incomplete"}), "ok"),
        ("/v1/responses", event({"type": "response.failed"}), "failed"),
        ("/v1/responses", event({"type": "response.created"}), "no_end_marker"),
        ("/tokenize", b"anything", "ok"),
    ],
)
def test_a_stream_ends_well_only_with_the_marker_of_its_api(path, last, ending):
    tail = UsageTail()
    tail.feed(last)
    assert tail.ending(path) == ending


class SlowSink(RecordingSink):
    """Writes when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = asyncio.Event()
        self.may_write = asyncio.Event()

    async def write(self, rows: Sequence[UsageRow]) -> None:
        self.is_writing.set()
        await self.may_write.wait()
        await super().write(rows)


async def test_a_stop_in_the_middle_of_a_write_loses_and_doubles_nothing(monkeypatch):
    monkeypatch.setattr("llmgw_server.gateway.account.FLUSH_S", 0.0)
    sink = SlowSink()
    books = Accounts(sink, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    books.book(
        model="m", key_id="k", replica_id="r", outcome="ok", tokens=(1, 1), is_estimated=False
    )
    running = asyncio.create_task(books.run())
    await sink.is_writing.wait()
    books.book(
        model="m", key_id="k", replica_id="r", outcome="ok", tokens=(1, 1), is_estimated=False
    )
    books.end()
    sink.may_write.set()
    await running
    await books.flush()
    assert sum(row.requests for row in sink.rows) == 2


async def test_a_store_that_hangs_holds_up_nothing_and_its_rows_are_kept(monkeypatch):
    monkeypatch.setattr("llmgw_server.gateway.account.WRITE_S", 0.01)
    sink = SlowSink()
    books = Accounts(sink, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    books.book(
        model="m", key_id="k", replica_id="r", outcome="ok", tokens=(1, 1), is_estimated=False
    )
    await books.flush()
    assert sink.rows == []
    sink.may_write.set()
    await books.flush()
    assert len(sink.rows) == 1
