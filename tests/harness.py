"""Real server and agent processes on loopback, for integration and end-to-end tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import yaml

from llmgw_common.api.client import ApiClient
from llmgw_common.api.models import ApplyRequest, JoinTokenRequest

Found = TypeVar("Found")


def eventually(
    look: Callable[[], Found], limit_s: float = 20.0, what: str = "the condition"
) -> Found:
    """Return what `look` returns as soon as it is true; fail after the limit."""
    deadline = time.monotonic() + limit_s
    last: BaseException | None = None
    while time.monotonic() < deadline:
        try:
            found = look()
            if found:
                return found
        except (AssertionError, httpx.TransportError, OSError) as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come about within {limit_s} s ({last})")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """One `python -m module`, with its log in a file."""

    def __init__(self, module: str, config: Path, log: Path) -> None:
        self.module = module
        self.config = config
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--config", str(self.config)],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """kill -9: no clean-up whatever."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, limit_s: float = 40.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit_s)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Fleet:
    """A server and its agents in one folder; `close` leaves no process behind."""

    def __init__(self, folder: Path, **server: Any) -> None:
        self.folder = folder
        self.port = free_port()
        scheme = "https" if "tls" in server else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.agents: dict[str, Program] = {}
        self.server = self._server(server)

    def _server(self, extra: dict[str, Any]) -> Program:
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "data_dir": str(self.folder / "server"),
            "admin_key_file": str(self.folder / "admin.key"),
            "reconcile": {"settling": "5s", "interval": "500ms"},
            "channel": {"heartbeat": "500ms"},
            "gateway": {"stop_grace": "3s"},
        } | extra
        config = self.folder / "server.yaml"
        config.write_text(yaml.safe_dump(settings))
        return Program("llmgw_server", config, self.folder / "server.log")

    def start_server(self) -> None:
        self.server.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        eventually(
            lambda: httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200,
            what=f"the server's readiness; {self.server.log}",
        )

    @property
    def key(self) -> str:
        return (self.folder / "admin.key").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def api(self) -> ApiClient:
        return ApiClient(self.url, self.key)

    def start_agent(self, name: str, **settings: Any) -> Program:
        token_file = self.folder / f"{name}.token"
        with self.api() as api:
            token_file.write_text(api.create_join_token(JoinTokenRequest()).text)
        # Below the ephemeral range, and apart from the demo's band.
        low = 21000 + 100 * len(self.agents) + (os.getpid() % 50) * 200
        config = self.folder / f"{name}.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "server": self.url,
                    "node_name": name,
                    "join_token_file": str(token_file),
                    "data_dir": str(self.folder / name),
                    "ports": f"{low}-{low + 99}",
                    "inventory": {"nvml": "off"},
                }
                | settings
            )
        )
        agent = Program("llmgw_agent", config, self.folder / f"{name}.log")
        self.agents[name] = agent
        agent.start()
        eventually(lambda: self.node_state(name) == "connected", what=f"{name}; {agent.log}")
        return agent

    def node_state(self, name: str) -> str:
        with self.api() as api:
            return {node.name: node.state for node in api.nodes()}.get(name, "")

    def apply(self, catalog: dict[str, Any]) -> None:
        with self.api() as api:
            api.apply(ApplyRequest(text=json.dumps(catalog)))

    def model_state(self, name: str) -> str:
        with self.api() as api:
            return api.model(name).state

    def wait_model(self, name: str, state: str = "ready", limit_s: float = 30.0) -> None:
        eventually(lambda: self.model_state(name) == state, limit_s, f"{name} {state}")

    def engine_pids(self, model: str) -> list[int]:
        with self.api() as api:
            return [
                shard.pid
                for replica in api.replicas()
                if replica.model == model and replica.state in ("ready", "starting")
                for shard in replica.shards
                if shard.pid
            ]

    def chat(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]} | fields
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=self.headers, timeout=60)

    def close(self) -> None:
        for program in (*self.agents.values(), self.server):
            if program.process and program.process.poll() is None:
                program.kill()
        for process in marked_processes(self.folder):
            process.kill()


def marked_processes(folder: Path) -> list[psutil.Process]:
    """Engines whose command line or folder is under `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def fleet_in(folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(folder)
    try:
        fleet.start_server()
        yield fleet
    finally:
        fleet.close()


def simulated_catalog(*models: dict[str, Any]) -> dict[str, Any]:
    filled = [
        {
            "name": "tiny",
            "profiles": [
                {"name": "cpu", "engine": "sim", "gpus": 0, "args": model.pop("args", {})}
            ],
        }
        | model
        for model in (dict(model) for model in models or ({},))
    ]
    return {"engines": [{"name": "sim", "kind": "simulated"}], "models": filled}
