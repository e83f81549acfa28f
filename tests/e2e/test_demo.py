"""`llmgw demo`: an answer, exit code 0, and nothing left behind."""

import signal
import subprocess
import sys
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import CACHE
from tests.harness import eventually, free_port, marked_processes


def alive(folder):
    return [p for p in marked_processes(folder) if p.status() != psutil.STATUS_ZOMBIE]


def demo(folder, *arguments):
    return [
        sys.executable, "-m", "llmgw_common.cli.main", "demo",
        "--state-dir", str(folder), "--port", str(free_port()), *arguments,
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    agent = tmp_path / "agent-this-machine"
    agent.mkdir()
    for name in ("engines", "weights"):
        (CACHE / name).mkdir(parents=True, exist_ok=True)
        (agent / name).symlink_to(CACHE / name)
    yield tmp_path
    for process in alive(tmp_path):
        process.kill()


@pytest.mark.timeout(300)
def test_the_demo_answers_paris_and_leaves_nothing_behind_and_works_again(folder):
    for _ in range(2):
        found = subprocess.run(
            demo(folder, "--once"), capture_output=True, text=True, timeout=280, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
        assert "Paris" in found.stdout.split("Answer in one sentence.")[-1]
        assert alive(folder) == []


def test_the_simulated_demo_stays_until_it_is_interrupted_and_then_leaves_nothing(tmp_path):
    with subprocess.Popen(
        demo(tmp_path, "--simulate", "2x8xH200"), stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        text = ""
        while "Ctrl-C ends it all" not in text:
            line = running.stdout.readline()
            assert line, text
            text += line
        key = next(x.split()[-1] for x in text.splitlines() if x.startswith("Admin key"))
        server = next(x.split()[-1] for x in text.splitlines() if x.startswith("Admin API"))
        headers = {"authorization": f"Bearer {key}"}
        models = httpx.get(f"{server}/models", headers=headers).json()["items"]
        states = {m["name"]: m["state"] for m in models}
        assert states["acme/large-70b"] == "ready"
        assert states["acme/too-big-405b"] == "waiting"
        assert states["acme/on-demand-32b"] == "on demand"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    assert alive(tmp_path) == []


def test_a_killed_demo_takes_its_programs_along(tmp_path):
    with subprocess.Popen(
        demo(tmp_path, "--simulate", "1x4xH200"), stdout=subprocess.PIPE, text=True
    ) as running:
        eventually(lambda: len(alive(tmp_path)) >= 3, 60, "server, agent and an engine")
        running.kill()
    begun = time.monotonic()
    eventually(lambda: alive(tmp_path) == [], 60, "the end of everything")
    assert time.monotonic() - begun < 60


def test_a_wish_that_cannot_be_read_is_refused_in_words(tmp_path):
    found = subprocess.run(
        demo(tmp_path, "--simulate", "lots"), capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "3x8xH200" in found.stderr
