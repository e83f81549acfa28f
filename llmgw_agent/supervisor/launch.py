"""Starts an engine so that it outlives the agent.

Own session and process group; standard output and error go to a file, never to a pipe; the mark of
shard and epoch is in its environment, and nothing of the agent's own credentials is.
"""

import fnmatch
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw_agent.engines.adapter import Launch
from llmgw_agent.supervisor.processes import MARK_AGENT, MARK_EPOCH, MARK_SHARD, start_time
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import StartShard

#: What an engine inherits of the agent's environment.
_INHERITED: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH", "CUDA_HOME", "SSL_CERT_FILE", "PYTHONPATH", "COVERAGE_PROCESS_START",
)  # fmt: skip
#: What no catalog may set, whatever the node's allow-list says: it would run foreign code.
_REFUSED: Final = ("LD_*", "PYTHON*", "PATH", "HOME", "LLMGW_*", "BASH_ENV", "ENV", "DYLD_*")


@dataclass(frozen=True, slots=True)
class EnvironmentValue:
    """One variable and who set it: agent, engine, adapter or profile."""

    value: str
    origin: str


def environment(
    command: StartShard, launch: Launch, allowed: list[str], agent: str
) -> dict[str, EnvironmentValue]:
    """Return the engine's environment with the origin of each value; later origins win.

    Order: what the agent passes on, the engine's catalog entry, what the adapter computes, the
    profile (the user's values win), the stored secrets, the marks.

    Raises:
        LlmgwError: `refused_by_node`, the catalog sets what this node does not allow.
    """
    found = {
        name: EnvironmentValue(os.environ[name], "agent")
        for name in _INHERITED
        if name in os.environ
    }
    _lay_over(found, command.engine.env, "engine", allowed)
    found.update({k: EnvironmentValue(v, "adapter") for k, v in launch.env.items()})
    _lay_over(found, command.env, "profile", allowed)
    secrets = {k: v.get_secret_value() for k, v in command.secrets.items()}
    found.update({k: EnvironmentValue(v, "secret") for k, v in secrets.items()})
    found[MARK_AGENT] = EnvironmentValue(agent, "agent")
    found[MARK_SHARD] = EnvironmentValue(command.shard_id, "agent")
    found[MARK_EPOCH] = EnvironmentValue(str(command.epoch), "agent")
    return found


def _lay_over(
    found: dict[str, EnvironmentValue], values: Mapping[str, str], origin: str, allowed: list[str]
) -> None:
    for name, value in values.items():
        is_refused = any(fnmatch.fnmatchcase(name, pattern) for pattern in _REFUSED)
        if is_refused or not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
            text = f"{origin} sets {name}, which agent.yaml's allow.env_names does not allow"
            raise LlmgwError("refused_by_node", text)
        found[name] = EnvironmentValue(value, origin)


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was launched."""

    process: subprocess.Popen[bytes]
    pid: int
    process_started: int


def launch(
    argv: tuple[str, ...], values: Mapping[str, EnvironmentValue], log_file: Path
) -> Started:
    """Start the program; blocking for as long as an exec takes.

    Raises:
        LlmgwError: `engine_install_failed`, it cannot be executed.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as output:
        try:
            process = subprocess.Popen(
                argv,
                env={name: found.value for name, found in values.items()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                cwd=log_file.parent,
            )
        except OSError as error:
            text = f"{argv[0]} cannot be started: {error.strerror}"
            raise LlmgwError("engine_install_failed", text) from error
    return Started(process, process.pid, start_time(process.pid) or 0)
