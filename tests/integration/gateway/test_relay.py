"""What the gateway does between a client and scripted engines, over real sockets."""

import asyncio
import gzip
import itertools
import json
import time
from dataclasses import replace

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_server.gateway.gateway import GatewaySettings
from tests.gateway_harness import QUICK, route, served, target
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    Exchange,
    ScriptedEngine,
    answers_ok,
    chunk,
    event,
    streams_ok,
    token,
    whole,
)


async def test_a_body_goes_on_untouched_with_our_host_and_the_engines_own_key():
    raw = b'{"model" : "m", "max_tokens": null, "unknown": {"deep": [1, null]}, "messages":[]}'
    async with ScriptedEngine(answers_ok) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.client.post("/v1/chat/completions", content=raw)
        assert answer.status_code == 200
    (seen,) = engine.seen
    assert seen.body == raw
    assert seen.header("host") == f"127.0.0.1:{engine.port}"
    assert seen.header("authorization") == "Bearer engine-key"
    assert seen.header("accept-encoding") == "identity"
    assert gw.key not in seen.head.decode()


async def test_status_and_body_of_the_engine_pass_unchanged():
    async def script(exchange: Exchange) -> None:
        await exchange.send(whole(b'{"odd":"answer"}', "418 Teapot"))

    async with ScriptedEngine(script) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat()
    assert answer.status_code == 418
    assert answer.content == b'{"odd":"answer"}'
    assert answer.headers["x-llmgw-replica"] == "rep-1"
    assert answer.headers["x-request-id"].startswith("req-")


async def test_only_the_model_is_rewritten_where_the_engine_calls_it_otherwise():
    async with ScriptedEngine(answers_ok) as engine:
        there = target(engine.port, served_model="served/name")
        async with served(route(there, aliases=("gpt-4o",))) as gw:
            await gw.chat(model="gpt-4o", seed=None, x={"a": 1})
    sent = engine.seen[0].json
    assert sent["model"] == "served/name"
    assert sent["seed"] is None
    assert sent["x"] == {"a": 1}


async def test_a_stream_passes_and_the_usage_we_asked_for_is_booked_but_not_shown():
    async with ScriptedEngine(streams_ok) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat(stream=True)
        assert answer.content == token("a") + token("b") + DONE
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        await gw.idle()
    assert engine.seen[0].json["stream_options"] == {"include_usage": True}
    (row,) = gw.sink.rows
    assert (row.prompt_tokens, row.completion_tokens, row.estimated) == (7, 3, 0)
    assert (row.key.model, row.key.key_id, row.key.outcome) == ("m", "key-1", "ok")


async def test_a_client_that_asks_for_usage_gets_it_byte_for_byte():
    async with ScriptedEngine(streams_ok) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat(stream=True, stream_options={"include_usage": True})
    assert answer.content == token("a") + token("b") + USAGE + DONE


async def test_stream_means_only_the_json_value_true():
    async with ScriptedEngine(answers_ok) as engine, served(route(target(engine.port))) as gw:
        for value in (None, False, "true", 1):
            assert (await gw.chat(stream=value)).status_code == 200
    assert all("stream_options" not in seen.json for seen in engine.seen)


TEXT = "日本🎉".encode()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.sets(st.integers(1, 400), max_size=12), newline=st.sampled_from([b"\n", b"\r\n"]))
def test_bytes_out_equal_bytes_in_however_the_network_cuts_them(cuts, newline):
    body = b"".join(
        (
            b": hello" + newline * 2,
            b"event: x" + newline + b"data: " + TEXT + newline * 2,
            event({"choices": [{"delta": {"content": TEXT.decode()}}]}, newline * 2),
            b"data: {broken" + newline * 2,
            DONE,
        )
    )
    places = [0, *sorted(c for c in cuts if c < len(body)), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(places)]

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, *map(chunk, pieces), LAST_CHUNK)

    async def story() -> bytes:
        async with ScriptedEngine(script) as engine, served(route(target(engine.port))) as gw:
            return (await gw.chat(stream=True)).content

    assert asyncio.run(story()) == body


async def test_tool_call_pieces_arrive_one_by_one_in_order():
    async def script(exchange: Exchange) -> None:
        pieces = [chunk(token(str(i))) for i in range(20)]
        await exchange.send(STREAM_HEAD, *pieces, chunk(DONE), LAST_CHUNK, gap_s=0.01)

    got: list[tuple[float, bytes]] = []
    async with ScriptedEngine(script) as engine, served(route(target(engine.port))) as gw:
        body = {"model": "m", "stream": True, "messages": []}
        async with gw.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for part in answer.aiter_raw():
                got.append((time.monotonic(), part))
    assert b"".join(part for _, part in got) == b"".join(token(str(i)) for i in range(20)) + DONE
    assert len(got) > 10
    assert got[-1][0] - got[0][0] > 0.1


# --- engines that fail ---------------------------------------------------------------------------


async def test_a_replica_that_cannot_be_reached_is_passed_over():
    async with ScriptedEngine(answers_ok) as gone:
        dead_port = gone.port
    async with ScriptedEngine(answers_ok) as engine:
        both = route(target(dead_port, "rep-dead"), target(engine.port, "rep-live"))
        async with served(both) as gw:
            for _ in range(4):
                assert (await gw.chat()).status_code == 200


@pytest.mark.parametrize("status", ["503 Busy", "429 Too Many"])
async def test_a_busy_replica_is_passed_over_once_before_any_byte(status):
    async def busy(exchange: Exchange) -> None:
        await exchange.send(whole(b"{}", status))

    async with ScriptedEngine(busy) as full, ScriptedEngine(answers_ok) as free:
        both = route(target(full.port, "rep-full"), target(free.port, "rep-free"))
        async with served(both) as gw:
            for _ in range(4):
                assert (await gw.chat()).status_code == 200


async def test_when_all_are_busy_the_last_ones_own_answer_passes():
    async def busy(exchange: Exchange) -> None:
        await exchange.send(whole(b'{"error":"queue full"}', "503 Busy"))

    async with ScriptedEngine(busy) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat()
    assert answer.status_code == 503
    assert answer.json() == {"error": "queue full"}
    assert len(engine.seen) == 1


async def test_a_refused_request_is_not_sent_elsewhere():
    async def refuse(exchange: Exchange) -> None:
        await exchange.send(whole(b'{"error":"too long"}', "400 Bad"))

    async with ScriptedEngine(refuse) as one, ScriptedEngine(refuse) as two:
        async with served(route(target(one.port, "a"), target(two.port, "b"))) as gw:
            assert (await gw.chat()).status_code == 400
    assert len(one.seen) + len(two.seen) == 1


async def test_a_pooled_connection_that_went_stale_is_replaced_without_the_client_noticing():
    async def once_only(exchange: Exchange) -> None:
        await answers_ok(exchange)
        exchange.writer.close()

    async with ScriptedEngine(once_only) as engine, served(route(target(engine.port))) as gw:
        for _ in range(3):
            assert (await gw.chat()).status_code == 200
            await asyncio.sleep(0.02)


async def test_a_connection_that_closes_at_the_very_request_is_tried_again():
    async def closes_on_second(exchange: Exchange) -> None:
        if exchange.before:
            exchange.cut()
            raise ConnectionError
        await answers_ok(exchange)

    async with ScriptedEngine(closes_on_second) as engine, served(route(target(engine.port))) as gw:
        for _ in range(3):
            assert (await gw.chat()).status_code == 200
    assert any(seen.before for seen in engine.seen)


async def test_an_engine_that_dies_before_its_first_byte_is_a_502_in_openais_shape():
    async def die(exchange: Exchange) -> None:
        exchange.cut()

    async with ScriptedEngine(die) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat()
        await gw.idle()
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_failed"
    assert gw.sink.rows[0].key.outcome == "replica_failed"


async def test_a_stream_cut_after_content_ends_with_one_error_event_and_no_done():
    async def cut(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(token("a")), chunk(token("b")))
        await asyncio.sleep(0.05)
        exchange.cut()

    async with ScriptedEngine(cut) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat(stream=True)
        await gw.idle()
    text = answer.text
    assert text.count('"error"') == 1
    assert "[DONE]" not in text
    assert json.loads(text.strip().split("\n")[-1][6:])["error"]["code"] == "stream_cut"
    (row,) = gw.sink.rows
    assert row.key.outcome == "cut"
    assert row.estimated == 1
    assert row.completion_tokens == 2


async def test_on_messages_the_error_event_has_anthropics_shape():
    async def cut(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(b"event: ping\ndata: {}\n\n"))
        await asyncio.sleep(0.05)
        exchange.cut()

    async with ScriptedEngine(cut) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.client.post("/v1/messages", json={"model": "m", "stream": True})
    assert "event: error\n" in answer.text
    assert json.loads(answer.text.strip().split("\n")[-1][6:])["type"] == "error"


async def test_silence_between_bytes_ends_the_stream_and_frees_the_engine():
    async def silent(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(token("a")))
        await asyncio.sleep(30)

    async with ScriptedEngine(silent) as engine:
        async with served(route(target(engine.port), limits=QUICK)) as gw:
            answer = await gw.chat(stream=True)
            assert "silent for" in answer.text
            async with asyncio.timeout(1):
                await engine.left.wait()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_no_first_byte_in_time_is_an_error_and_frees_the_engine(is_stream):
    async def mute(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    async with ScriptedEngine(mute) as engine:
        async with served(route(target(engine.port), limits=QUICK)) as gw:
            answer = await gw.chat(stream=is_stream)
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "replica_timed_out"
            async with asyncio.timeout(1):
                await engine.left.wait()


@pytest.mark.parametrize("cut", [0, 3, 9, 16])
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_an_error_as_the_first_event_becomes_a_real_status(status, cut):
    async def error_first(exchange: Exchange) -> None:
        body = event({"error": {"message": "no slot", "code": status}})
        await exchange.send(STREAM_HEAD, *([chunk(body[:cut])] if cut else []), gap_s=0.02)
        await exchange.send(chunk(body[cut:]), chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(error_first) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat(stream=True)
        await gw.idle()
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "no slot"
    assert gw.sink.rows[0].key.outcome == f"engine_{status}"


@pytest.mark.parametrize(("status", "tries"), [(400, 1), (503, 2)])
async def test_a_first_error_event_is_tried_elsewhere_unless_the_request_is_at_fault(status, tries):
    async def error_first(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(event({"error": {"code": status}})), LAST_CHUNK)

    async with ScriptedEngine(error_first) as one, ScriptedEngine(error_first) as two:
        both = route(target(one.port, "rep-1"), target(two.port, "rep-2"))
        async with served(both) as gw:
            assert (await gw.chat(stream=True)).status_code == status
    assert len(one.seen) + len(two.seen) == tries


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort",
    ],
)
async def test_an_answer_that_is_no_proper_http_never_hangs_and_its_connection_is_not_reused(
    answer,
):
    async def lie(exchange: Exchange) -> None:
        await exchange.send(answer)
        exchange.writer.close()

    async with ScriptedEngine(lie) as engine, served(route(target(engine.port))) as gw:
        try:
            found = await gw.chat()
            assert found.status_code in (502, 200)
        except httpx.RemoteProtocolError:
            pass
        await gw.idle()
    assert all(seen.before == 0 for seen in engine.seen)


async def test_bytes_after_the_end_of_an_answer_close_the_connection():
    async def trailing(exchange: Exchange) -> None:
        await exchange.send(whole(b"{}") + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n!!")

    async with ScriptedEngine(trailing) as engine, served(route(target(engine.port))) as gw:
        for _ in range(2):
            answer = await gw.chat()
            assert answer.content in (b"{}", b"") or answer.status_code == 502
            assert b"!!" not in answer.content
    assert all(seen.before == 0 for seen in engine.seen)


async def test_interim_answers_are_skipped_and_a_body_may_end_with_the_connection():
    async def odd(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n", b"to the end")
        exchange.writer.close()

    async with ScriptedEngine(odd) as engine, served(route(target(engine.port))) as gw:
        answer = await gw.chat()
    assert answer.text == "to the end"


# --- clients that leave or are slow --------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_before_the_first_byte_closes_the_engines_connection(is_stream):
    async def mute(exchange: Exchange) -> None:
        await asyncio.sleep(30)

    async with ScriptedEngine(mute) as engine, served(route(target(engine.port))) as gw:
        asking = asyncio.create_task(gw.chat(stream=is_stream))
        while not engine.seen:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(0.5):
            await engine.left.wait()
        await gw.idle()
    assert gw.sink.rows[0].key.outcome == "client_gone"


async def test_a_client_that_leaves_in_mid_stream_closes_the_engines_connection_and_is_booked():
    async def endless(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        while True:
            await exchange.send(chunk(token("x")), gap_s=0.01)

    async with ScriptedEngine(endless) as engine, served(route(target(engine.port))) as gw:
        body = {"model": "m", "stream": True, "messages": []}
        async with gw.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            parts = answer.aiter_raw()
            await anext(parts)
        async with asyncio.timeout(0.5):
            await engine.left.wait()
        await gw.idle()
    (row,) = gw.sink.rows
    assert row.key.outcome == "client_gone"
    assert row.estimated == 1
    assert row.completion_tokens >= 1


async def test_a_slow_client_makes_the_engine_wait_instead_of_filling_memory():
    sent = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(STREAM_HEAD)
        for _ in range(2000):
            await exchange.send(chunk(b"data: " + b"x" * 65536 + b"\n\n"))
            sent += 65536

    async with ScriptedEngine(flood) as engine, served(route(target(engine.port))) as gw:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(gw.url.rpartition(":")[2]), limit=1024
        )
        body = b'{"model":"m","stream":true,"messages":[]}'
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            + gw.key.encode()
            + b"\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        await reader.readline()
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 40 << 20
        writer.transport.abort()
        async with asyncio.timeout(2):
            await engine.left.wait()


# --- the table -----------------------------------------------------------------------------------


async def test_after_a_swap_no_new_request_goes_to_what_left_and_running_ones_go_on():
    async def slow(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD, chunk(token("a")))
        await asyncio.sleep(0.3)
        await exchange.send(chunk(DONE), LAST_CHUNK)

    async with ScriptedEngine(slow) as old, ScriptedEngine(answers_ok) as new:
        async with served(route(target(old.port, "rep-old"))) as gw:
            running = asyncio.create_task(gw.chat(stream=True))
            while not old.seen:
                await asyncio.sleep(0.01)
            gw.publish(route(target(new.port, "rep-new")))
            for _ in range(3):
                answer = await gw.chat()
                assert answer.headers["x-llmgw-replica"] == "rep-new"
            assert (await running).content == token("a") + DONE
    assert len(old.seen) == 1


async def test_a_cold_model_makes_requests_wait_for_one_start_and_then_serves_them_all():
    async with ScriptedEngine(answers_ok) as engine, served(route()) as gw:
        asking = [asyncio.create_task(gw.chat()) for _ in range(5)]
        while gw.gateway.demand().waiting.get("m") != 5:
            await asyncio.sleep(0.01)
        assert gw.demands
        gw.publish(route(target(engine.port)))
        assert [(await task).status_code for task in asking] == [200] * 5
        assert gw.gateway.demand().waiting == {}


async def test_a_cold_model_that_cannot_be_placed_answers_at_once_with_the_reason():
    cold = route(is_placeable=False, why_not_ready="0 of 2 nodes fit p: 2 are cordoned")
    async with served(cold) as gw:
        answer = await gw.chat()
    assert answer.status_code == 503
    assert "2 are cordoned" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0


async def test_a_wait_that_is_too_long_ends_with_503_and_a_full_queue_refuses():
    async with served(route(limits=replace(QUICK, max_queue=1))) as gw:
        first = asyncio.create_task(gw.chat())
        while not gw.gateway.demand().waiting:
            await asyncio.sleep(0.01)
        second = await gw.chat()
        assert second.status_code == 503
        assert second.json()["error"]["code"] == "overloaded"
        late = await first
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "model_unavailable"


async def test_a_client_that_leaves_the_queue_gives_its_place_back():
    async with served(route()) as gw:
        asking = asyncio.create_task(gw.chat())
        while not gw.gateway.demand().waiting:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(1):
            while gw.gateway.demand().waiting:
                await asyncio.sleep(0.01)


async def test_a_model_removed_while_requests_wait_is_a_404():
    async with served(route()) as gw:
        asking = asyncio.create_task(gw.chat())
        while not gw.gateway.demand().waiting:
            await asyncio.sleep(0.01)
        gw.publish()
        assert (await asking).status_code == 404


# --- requests ------------------------------------------------------------------------------------


async def test_a_gzip_body_is_decoded_for_the_engine_and_unknown_encodings_are_415():
    raw = json.dumps({"model": "m", "messages": []}).encode()
    async with ScriptedEngine(answers_ok) as engine, served(route(target(engine.port))) as gw:
        for encoding, status in (("gzip", 200), ("zstd", 415)):
            answer = await gw.client.post(
                "/v1/chat/completions",
                content=gzip.compress(raw),
                headers={"content-encoding": encoding},
            )
            assert answer.status_code == status
    assert engine.seen[0].body == raw
    assert engine.seen[0].header("content-encoding") is None


async def test_a_body_over_the_limit_is_413_with_and_without_an_announced_length():
    async def pieces():
        for _ in range(20):
            yield b"x" * 100

    async with served(route(), settings=GatewaySettings(body_bytes_max=1000)) as gw:
        path = "/v1/chat/completions"
        assert (await gw.client.post(path, content=b"x" * 2000)).status_code == 413
        assert (await gw.client.post(path, content=pieces())).status_code == 413
        bomb = gzip.compress(b" " * 100_000)
        headers = {"content-encoding": "gzip"}
        assert (await gw.client.post(path, content=bomb, headers=headers)).status_code == 413


@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b'{"model": 3}', b"{}", b"[" * 100_000])
async def test_a_body_that_names_no_model_is_400_in_openais_shape(body):
    async with served(route()) as gw:
        answer = await gw.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_every_path_wants_a_key_and_says_nothing_more_without_one():
    async with served(route()) as gw, httpx.AsyncClient(base_url=gw.url) as stranger:
        texts = set()
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/v1/models/m"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/nothing"),
            ("POST", "/tokenize"),
        ):
            for headers in (
                {},
                {"authorization": "Bearer llmgw-nope"},
                {"x-api-key": "' OR 1=1 --"},
                {"authorization": "Basic abc"},
                {"authorization": "Bearer " + "x" * 10_000},
            ):
                answer = await stranger.request(method, path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                texts.add(answer.text)
    assert len(texts) == 1


async def test_both_credential_forms_work_and_two_different_ones_are_400():
    async with served(route()) as gw, httpx.AsyncClient(base_url=gw.url) as other:
        assert (await other.get("/v1/models", headers={"x-api-key": gw.key})).status_code == 200
        both = {"x-api-key": gw.key, "authorization": f"Bearer {gw.key}"}
        assert (await other.get("/v1/models", headers=both)).status_code == 200
        differ = {"x-api-key": gw.key, "authorization": "Bearer other"}
        assert (await other.get("/v1/models", headers=differ)).status_code == 400


async def test_models_with_slashes_are_found_plain_and_encoded():
    async with served(route(name="org/m", aliases=("gpt-4o",))) as gw:
        for path in ("/v1/models/org/m", "/v1/models/org%2Fm", "/v1/models/gpt-4o"):
            assert (await gw.client.get(path)).status_code == 200
        assert (await gw.client.get("/v1/models/none")).status_code == 404
        listed = (await gw.client.get("/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == ["org/m", "gpt-4o"]


async def test_an_unknown_path_is_404_and_a_wrong_method_405_in_openais_shape():
    async with served(route()) as gw:
        answer = await gw.client.get("/v1/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_path")
        answer = await gw.client.get("/v1/chat/completions")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
