"""The simulated engine as a real process: it must fail exactly as its script says, else be good."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager

import httpx
import pytest

from llmgw_agent.engines.adapter import LaunchFacts
from llmgw_agent.engines.simulated.adapter import Simulated
from tests.harness import free_port

KEY = "engine-key"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello " * 8}]}


class Running:
    def __init__(self, process, client):
        self.process = process
        self.client = client

    async def ended(self):
        async with asyncio.timeout(10):
            output, _ = await self.process.communicate()
        return self.process.returncode, output.decode()

    async def until_metric(self, name, value):
        async with asyncio.timeout(5):
            while True:
                text = (await self.client.get("/metrics")).text
                if f"vllm:{name} {value}\n" in text:
                    return
                await asyncio.sleep(0.01)

    async def until_healthy(self):
        async with asyncio.timeout(15):
            while True:
                try:
                    if (await self.client.get("/health")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.02)


@asynccontextmanager
async def engine(folder, *, is_loaded=True, **args):
    key_file = folder / "key"
    key_file.write_text(KEY + "\n")
    port = free_port()
    facts = LaunchFacts(
        program=None,
        weights=None,
        served_model="m",
        host="127.0.0.1",
        port=port,
        key_file=key_file,
        gpu_indices=(),
        args={"load-s": 0.01, "first-token-s": 0.0, "tokens-per-s": 2000.0} | args,
    )
    process = await asyncio.create_subprocess_exec(
        *Simulated().command_line(facts).argv,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    client = httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=10,
    )
    running = Running(process, client)
    try:
        if is_loaded:
            await running.until_healthy()
        yield running
    finally:
        await client.aclose()
        if process.returncode is None:
            process.kill()
        await process.communicate()


def events(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_stream_has_its_tokens_and_its_usage_when_asked(tmp_path):
    async with engine(tmp_path, tokens=5) as sim:
        body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        chunks = events((await sim.client.post("/v1/chat/completions", json=body)).text)
        *parts, last, usage = chunks
        words = [part["choices"][0]["delta"]["content"] for part in parts]
        assert "".join(words) == "The quick brown fox jumps "
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 5
        chunks = events(
            (await sim.client.post("/v1/chat/completions", json=CHAT | {"stream": True})).text
        )
        assert all("usage" not in chunk for chunk in chunks)


async def test_the_other_calls_answer_in_their_shapes(tmp_path):
    async with engine(tmp_path) as sim:
        chat = (await sim.client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 2})).json()
        assert chat["choices"][0]["message"]["content"] == "The quick "
        assert chat["usage"]["completion_tokens"] == 2
        text = (await sim.client.post("/v1/completions", json={"prompt": "x"})).json()
        assert text["object"] == "text_completion"
        assert len(text["choices"][0]["text"].split()) == 16
        rows = (await sim.client.post("/v1/embeddings", json={"input": ["a", "b"]})).json()["data"]
        assert [row["index"] for row in rows] == [0, 1]
        models = (await sim.client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["m"]
        tokens = (await sim.client.post("/tokenize", json={"prompt": "a b c"})).json()
        assert tokens["count"] == 3


@pytest.mark.parametrize("key", ["", "Bearer wrong"])
async def test_without_its_key_nobody_gets_a_token(tmp_path, key):
    async with engine(tmp_path) as sim:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"):
            answer = await sim.client.post(path, json=CHAT, headers={"authorization": key})
            assert answer.status_code == httpx.codes.UNAUTHORIZED
        answer = await sim.client.get("/v1/models", headers={"authorization": key})
        assert answer.status_code == httpx.codes.UNAUTHORIZED


@pytest.mark.parametrize(
    "content", [b"{", b"7", b"[]", b"\xff", b"{}", b'{"prompt": "x", "max_tokens": "many"}']
)
async def test_what_is_no_request_is_refused_and_not_a_fault(tmp_path, content):
    async with engine(tmp_path) as sim:
        answer = await sim.client.post("/v1/chat/completions", content=content)
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert answer.json()["error"]["message"]
        for path in ("/v1/embeddings", "/tokenize"):
            answer = await sim.client.post(path, content=content)
            assert answer.status_code in (httpx.codes.OK, httpx.codes.BAD_REQUEST)


async def test_while_it_loads_it_says_so(tmp_path):
    async with engine(tmp_path, is_loaded=False, **{"load-s": 60.0}) as sim:
        async with asyncio.timeout(10):
            while True:
                try:
                    answer = await sim.client.get("/health")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        answer = await sim.client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_once(tmp_path, is_stream):
    slow = {"slots": 1, "tokens": 100_000, "tokens-per-s": 20.0}
    async with engine(tmp_path, **slow) as sim:
        body = CHAT | {"stream": is_stream, "max_tokens": 100_000}

        async def ask():
            await sim.client.post("/v1/chat/completions", json=body)

        first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
        await sim.until_metric("num_requests_running", 1)
        await sim.until_metric("num_requests_waiting", 1)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await sim.until_metric("num_requests_waiting", 0)
        await sim.until_metric("num_requests_running", 0)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_after_so_many_requests_it_hangs_open_and_healthy(tmp_path, is_stream):
    async with engine(tmp_path, **{"hang-after-requests": 1}) as sim:
        assert (await sim.client.post("/v1/chat/completions", json=CHAT)).is_success
        body = CHAT | {"stream": is_stream}
        with pytest.raises(httpx.ReadTimeout):
            await sim.client.post("/v1/chat/completions", json=body, timeout=0.3)
        assert (await sim.client.get("/health")).is_success
        await sim.until_metric("num_requests_running", 0)


async def test_a_load_that_fails_says_why_and_ends(tmp_path):
    text = "torch.OutOfMemoryError: CUDA out of memory"
    async with engine(tmp_path, is_loaded=False, **{"fail-load": text}) as sim:
        code, output = await sim.ended()
        assert code == 1
        assert text in output
        assert Simulated.error_patterns[0].pattern.search(output)


async def test_after_so_many_answers_it_exits_with_its_code(tmp_path):
    async with engine(tmp_path, **{"exit-after-requests": 2, "exit-code": 7}) as sim:
        for _ in range(2):
            assert (await sim.client.post("/v1/chat/completions", json=CHAT)).is_success
        assert (await sim.ended())[0] == 7


async def test_after_so_long_it_exits(tmp_path):
    async with engine(tmp_path, is_loaded=False, **{"exit-after-s": 0.05, "exit-code": 3}) as sim:
        assert (await sim.ended())[0] == 3


async def test_sigterm_ends_it_even_in_the_middle_of_an_answer(tmp_path):
    async with engine(tmp_path, tokens=100_000, **{"tokens-per-s": 20.0}) as sim:
        asking = asyncio.create_task(
            sim.client.post("/v1/completions", json={"prompt": "x", "stream": True})
        )
        await sim.until_metric("num_requests_running", 1)
        sim.process.send_signal(signal.SIGTERM)
        await sim.ended()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_stubborn_one_ignores_sigterm_and_serves_on(tmp_path):
    async with engine(tmp_path, **{"ignore-sigterm": True}) as sim:
        sim.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            while b"SIGTERM ignored" not in await sim.process.stdout.readline():
                pass
        assert (await sim.client.post("/v1/chat/completions", json=CHAT)).is_success
        assert sim.process.returncode is None


async def test_an_argument_that_it_does_not_know_ends_it_with_its_usage(tmp_path):
    async with engine(tmp_path, is_loaded=False, **{"no-such": 1}) as sim:
        code, output = await sim.ended()
        assert code == 2
        assert "--no-such" in output


async def test_its_interpreter_is_the_agents_own():
    facts = LaunchFacts(
        program=None, weights=None, served_model="-m", host="::1", port=1, key_file=None,  # type: ignore[arg-type]
        gpu_indices=(), args={},
    )  # fmt: skip
    assert Simulated().command_line(facts).argv[0] == sys.executable
