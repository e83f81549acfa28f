"""A real llama.cpp with a real model, asked by the official client and by plain curl."""

import json
import os
import signal
import subprocess
from typing import Any

import httpx
import openai
import pytest

from llmgw_common.api.models import KeyRequest
from tests.harness import eventually

QUESTION = "What is the capital of France? Answer in one sentence."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def client(real_fleet):
    with openai.OpenAI(base_url=f"{real_fleet.url}/v1", api_key=real_fleet.key) as found:
        yield found


def test_the_official_client_lists_the_models(client):
    assert {m.id for m in client.models.list()} == {"smollm2", "org/smollm2"}
    assert client.models.retrieve("org/smollm2").id == "org/smollm2"


def test_a_chat_names_paris_and_counts_its_tokens(client):
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 3


def test_a_streamed_chat_comes_in_pieces_with_usage_only_if_asked_for(client):
    stream = client.chat.completions.create(
        model="org/smollm2",
        messages=MESSAGES,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert "Paris" in text
    assert len(events) > 5
    assert events[-1].usage is not None
    without = list(
        client.chat.completions.create(
            model="smollm2", messages=MESSAGES, temperature=0, stream=True
        )
    )
    assert all(event.choices for event in without)
    assert all(event.usage is None for event in without)


def test_a_completion_works(client):
    answer = client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=5, temperature=0
    )
    assert "Paris" in answer.choices[0].text


def test_embeddings_that_the_engine_does_not_do_are_the_engines_own_answer(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.with_options(max_retries=0).embeddings.create(model="smollm2", input="x")
    assert caught.value.status_code == 501


def test_an_unknown_model_is_404_in_openais_shape(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-99", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_a_wrong_key_is_401_in_openais_shape_and_says_nothing_more(real_fleet):
    client = openai.OpenAI(base_url=f"{real_fleet.url}/v1", api_key="llmgw-wrong")
    with pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert caught.value.code == "invalid_api_key"


def test_a_client_key_serves_its_models_only_and_opens_no_admin_api(real_fleet):
    with real_fleet.api() as api:
        text = api.create_key(KeyRequest(name="app", models=("other",))).text
    client = openai.OpenAI(base_url=f"{real_fleet.url}/v1", api_key=text)
    with pytest.raises(openai.PermissionDeniedError):
        client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert list(client.models.list()) == []
    answer = httpx.get(
        f"{real_fleet.url}/api/v1/models", headers={"authorization": f"Bearer {text}"}
    )
    assert answer.status_code == 403


def test_plain_curl_streams(real_fleet):
    body = {"model": "smollm2", "stream": True, "temperature": 0, "messages": MESSAGES}
    found = subprocess.run(
        [
            "curl", "-sN", "-m", "60", f"{real_fleet.url}/v1/chat/completions",
            "-H", f"Authorization: Bearer {real_fleet.key}",
            "-H", "Content-Type: application/json",
            "-d", json.dumps(body),
        ],
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    lines = [line for line in found.stdout.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 5


def test_native_anthropic_messages_pass_to_the_engine(real_fleet):
    answer = httpx.post(
        f"{real_fleet.url}/v1/messages",
        json={"model": "smollm2", "max_tokens": 16, "messages": MESSAGES},
        headers={"x-api-key": real_fleet.key, "anthropic-version": "2023-06-01"},
        timeout=60,
    )
    assert answer.status_code == 200
    assert answer.json()["type"] == "message"


def slots_busy(fleet):
    """How many of llama.cpp's slots work, asked of the engine itself."""
    with fleet.api() as api:
        shard = next(r for r in api.replicas() if r.state == "ready").shards[0]
    key = (fleet.folder / "n1" / "keys" / f"{shard.id}.key").read_text().strip()
    answer = httpx.get(f"{shard.url}/slots", headers={"authorization": f"Bearer {key}"})
    return sum(slot["is_processing"] for slot in answer.json())


def test_a_client_that_leaves_in_mid_stream_frees_the_slot_within_a_second(real_fleet):
    body = {
        "model": "smollm2",
        "stream": True,
        "max_tokens": 1500,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me a very long story."}],
    }
    url = f"{real_fleet.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=real_fleet.headers, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert slots_busy(real_fleet) == 1
    eventually(lambda: slots_busy(real_fleet) == 0, 1.0, "a free slot")


def test_the_engine_wants_its_own_key(real_fleet):
    with real_fleet.api() as api:
        shard = next(r for r in api.replicas() if r.state == "ready").shards[0]
    answer = httpx.post(f"{shard.url}/v1/chat/completions", json={"messages": MESSAGES})
    assert answer.status_code == 401


def test_a_killed_engine_comes_back_and_its_log_is_told(real_fleet):
    (pid,) = real_fleet.engine_pids("smollm2")
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: (
            real_fleet.model_state("smollm2") == "ready"
            and real_fleet.engine_pids("smollm2") not in ([pid], [])
        ),
        30.0,
        "another engine",
    )
    with real_fleet.api() as api:
        failed = next(r for r in api.replicas() if r.state == "failed")
    assert "SIGKILL" in failed.error
    assert len(failed.shards[0].log_tail) > 5
