"""Starts the demo's programs, and ends them: no process and no listening port is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

#: Agents end their engines before they end: SIGTERM, the engines' grace, and a little.
_END_S: Final = 40.0
#: Becomes the program, tied to this process: a demo that is killed takes its programs along.
_CHILD: Final = "llmgw_common.cli.demo.child"


class StartError(Exception):
    """A program ended or never answered; the text tells where its log is."""


@dataclass(slots=True)
class Programs:
    """The running programs, in the order in which they were started."""

    folder: Path
    _running: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        """Start `python -m module` in a process group of its own: Ctrl-C is ours alone."""
        log = self.log_of(name)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", _CHILD, str(os.getpid()), module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append((name, process))

    def log_of(self, name: str) -> Path:
        """Return where a program's log is."""
        return self.folder / f"{name}.log"

    def check(self) -> None:
        """Raise StartError if a program has ended."""
        for name, process in self._running:
            if process.poll() is not None:
                raise StartError(
                    f"{name} ended with exit code {process.returncode}:\n{self._tail(name)}"
                )

    def wait_answering(self, url: str, name: str, limit_s: float = 30.0) -> None:
        """Return when `url` answers 200.

        Raises:
            StartError: the program ended, or the limit passed.
        """
        for _ in range(int(limit_s / 0.1)):
            self.check()
            with suppress(httpx.TransportError):
                if httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK:
                    return
            time.sleep(0.1)
        raise StartError(f"{name} did not answer within {limit_s:.0f} s:\n{self._tail(name)}")

    def end(self) -> None:
        """End them all, agents first (they end their engines), the server last."""
        for name, process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            if name.startswith("agent") and process is self._first_agent():
                self._wait("agent")
        self._wait("")
        self._running.clear()

    def _first_agent(self) -> subprocess.Popen[bytes] | None:
        return next((p for n, p in self._running if n.startswith("agent")), None)

    def _wait(self, prefix: str) -> None:
        for name, process in self._running:
            if name.startswith(prefix):
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _tail(self, name: str) -> str:
        log = self.log_of(name)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        return "\n".join(f"  | {line}" for line in lines) + f"\n  whole log: {log}"


def free_port(wanted: int) -> int:
    """Return `wanted` if nobody listens there, else a free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise StartError("no port is free on 127.0.0.1")
