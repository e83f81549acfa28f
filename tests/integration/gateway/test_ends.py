"""How answers end: cut, stalled, refused, at fault; what the client sees, what is booked."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from llmgw_server.gateway.gateway import GatewaySettings
from llmgw_server.gateway.table import RouteLimits
from tests.gateway_harness import Served, route, served, target
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Exchange,
    ScriptedEngine,
    answers_ok,
    chunk,
    event,
    streams_ok,
    token,
    whole,
)


def post(gw: Served, body: bytes, length: int | None = None) -> bytes:
    """Return a chat request as raw bytes that announces `length` bytes of body."""
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gw.key}\r\n"
        f"content-length: {length or len(body)}\r\n\r\n"
    ).encode() + body


async def connect(gw: Served, **options: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(gw.url.rpartition(":")[2]), **options)


async def test_half_an_answer_of_unknown_length_never_ends_like_a_whole_one():
    async def cut(exchange: Exchange) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        await exchange.send(head + b"transfer-encoding: chunked\r\n\r\n", chunk(b'{"choices":'))
        await asyncio.sleep(0.05)
        exchange.cut()

    async with ScriptedEngine(cut) as engine, served(route(target(engine.port))) as gw:
        with pytest.raises(httpx.RemoteProtocolError):
            await gw.chat()
        await gw.idle()
    assert gw.sink.rows[0].key.outcome == "cut"


async def test_an_answer_in_one_piece_may_take_longer_than_a_streams_first_byte():
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.4)
        await answers_ok(exchange)

    limits = RouteLimits(first_byte_s=0.1)
    async with ScriptedEngine(slow) as engine:
        async with served(route(target(engine.port), limits=limits)) as gw:
            assert (await gw.chat()).status_code == 200
            assert (await gw.chat(stream=True)).status_code == 504


async def test_headers_alone_are_not_the_first_byte_of_a_stream():
    async def head_only(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        await asyncio.sleep(0.4)
        await exchange.send(chunk(token("late")), chunk(DONE), LAST_CHUNK)

    prefills = RouteLimits(first_byte_s=5, between_bytes_s=0.1)
    impatient = RouteLimits(first_byte_s=0.1, between_bytes_s=5)
    async with ScriptedEngine(head_only) as engine:
        async with served(route(target(engine.port), limits=prefills)) as gw:
            assert "late" in (await gw.chat(stream=True)).text
            gw.publish(route(target(engine.port), limits=impatient))
            assert (await gw.chat(stream=True)).status_code == 504


async def test_a_replica_that_is_silent_is_not_asked_to_work_twice():
    async def mute(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    limits = RouteLimits(whole_answer_s=0.2)
    async with ScriptedEngine(mute) as one, ScriptedEngine(mute) as two:
        both = route(target(one.port, "rep-1"), target(two.port, "rep-2"), limits=limits)
        async with served(both) as gw:
            assert (await gw.chat()).status_code == 504
    assert len(one.seen) + len(two.seen) == 1


async def test_with_three_busy_replicas_two_are_asked_and_the_seconds_own_answer_passes():
    async def busy(exchange: Exchange) -> None:
        await exchange.send(
            b"HTTP/1.1 429 Too Many\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nfull"
        )

    async with (
        ScriptedEngine(busy) as one,
        ScriptedEngine(busy) as two,
        ScriptedEngine(busy) as three,
    ):
        engines = (one, two, three)
        targets = [target(e.port, f"rep-{i}") for i, e in enumerate(engines)]
        async with served(route(*targets)) as gw:
            answer = await gw.chat()
    assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (429, "full", "7")
    assert sum(len(engine.seen) for engine in engines) == 2


async def test_a_client_that_leaves_does_not_count_against_the_replica():
    async def mute_once(exchange: Exchange) -> None:
        if exchange.json.get("hold"):
            await asyncio.sleep(30)
        await answers_ok(exchange)

    async with ScriptedEngine(mute_once) as one, ScriptedEngine(answers_ok) as two:
        first, second = target(one.port, "rep-1"), target(two.port, "rep-2")
        async with served(route(first)) as gw:
            asking = asyncio.create_task(gw.chat(hold=True))
            while not one.seen:
                await asyncio.sleep(0.01)
            asking.cancel()
            await gw.idle()
            gw.publish(route(first, second))
            for _ in range(4):
                await gw.chat()
    assert len(one.seen) == 3
    assert len(two.seen) == 2


async def test_an_event_that_was_cut_short_does_not_swallow_the_error_event():
    async def cut(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(token("a")), chunk(b'data: {"choi'))
        await asyncio.sleep(0.05)
        exchange.cut()

    async with ScriptedEngine(cut) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat(stream=True, stream_options={"include_usage": True})
    assert '\n\ndata: {"error":' in answer.text


async def test_a_stream_without_its_end_marker_is_booked_as_such():
    async def unmarked(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(token("a")), LAST_CHUNK)

    async with ScriptedEngine(unmarked) as engine, served(route(target(engine.port))) as gw:
        assert (await gw.chat(stream=True)).text == token("a").decode()
        await gw.idle()
    assert gw.sink.rows[0].key.outcome == "no_end_marker"


async def test_a_responses_stream_that_ends_as_failed_is_booked_as_failed():
    failed = b"event: response.failed\n" + event({"type": "response.failed"})

    async def fails(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(event({"type": "response.created"})))
        await exchange.send(chunk(failed), LAST_CHUNK)

    async with ScriptedEngine(fails) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.client.post("/v1/responses", json={"model": "m", "stream": True})
        await gw.idle()
    assert answer.content.endswith(failed)
    assert gw.sink.rows[0].key.outcome == "failed"


async def test_a_client_that_takes_nothing_any_more_frees_the_engine():
    async def flood(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        while True:
            await exchange.send(chunk(b"data: " + b"x" * 65536 + b"\n\n"))

    settings = GatewaySettings(client_stall_s=0.3)
    async with ScriptedEngine(flood) as engine:
        async with served(route(target(engine.port)), settings=settings) as gw:
            reader, writer = await connect(gw, limit=1024)
            writer.write(post(gw, b'{"model":"m","stream":true}'))
            await reader.readline()
            async with asyncio.timeout(5):
                await engine.left.wait()
            writer.transport.abort()
            await gw.idle()
    assert gw.sink.rows[0].key.outcome == "client_gone"


async def test_a_body_that_does_not_come_is_408_and_its_connection_is_closed():
    settings = GatewaySettings(body_s=0.2)
    async with ScriptedEngine(answers_ok) as engine:
        async with served(route(target(engine.port)), settings=settings) as gw:
            reader, writer = await connect(gw)
            writer.write(post(gw, b'{"model":', length=100))
            async with asyncio.timeout(5):
                answer = await reader.read()
            writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer
    assert engine.seen == []


async def test_a_fault_of_the_gateway_is_500_in_openais_shape_and_gives_its_count_back(monkeypatch):
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("the secret prompt")

    async with ScriptedEngine(answers_ok) as engine, served(route(target(engine.port))) as gw:
        monkeypatch.setattr("llmgw_server.gateway.relay.for_engine", breaks)
        answer = await gw.chat()
        assert gw.gateway.demand().in_flight == {}
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text


async def test_a_connection_in_use_while_its_address_left_is_not_kept():
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await exchange.send(whole(b"{}"))

    async with ScriptedEngine(held) as engine, served(route(target(engine.port))) as gw:
        asking = asyncio.create_task(gw.chat())
        while not engine.seen:
            await asyncio.sleep(0.01)
        gw.publish()
        release.set()
        assert (await asking).status_code == 200
        gw.publish(route(replace(target(engine.port), epoch=2)))
        assert (await gw.chat()).status_code == 200
    assert [seen.before for seen in engine.seen] == [0, 0]


async def test_options_that_are_no_object_are_the_engines_to_refuse():
    async with ScriptedEngine(streams_ok) as engine, served(route(target(engine.port))) as gw:
        await gw.chat(stream=True, stream_options="yes")
    assert engine.seen[0].json["stream_options"] == "yes"
