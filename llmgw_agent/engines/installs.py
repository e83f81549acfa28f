"""Engine programs on this machine: a virtual environment per engine name, version and requirements.

Rule 1: made in a staging folder and renamed when whole; a broken install never replaces a good one.
Rule 2: one installer at a time per engine (a file lock, so it holds between processes too).
Rule 3: exact versions, wheels only, one allowed index, and none of the agent's credentials in the
installer's environment.
"""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uv
from packaging.requirements import InvalidRequirement, Requirement

from llmgw_agent.allowed import allowed_path
from llmgw_agent.file_lock import file_lock
from llmgw_agent.settings import AllowBlock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec
from llmgw_common.redact import redact

log = structlog.get_logger(__name__)

#: Lines of the installer's output that an error shows.
_LAST_LINES: Final = 15
_LINE_BYTES_MAX: Final = 4096
_PYTHON: Final = re.compile(r"\d{1,2}(\.\d{1,3}){0,2}")
#: What the installer may see of the environment: how to reach the network, and where to cache.
_ENVIRONMENT: Final = (
    "PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY",
    "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "UV_CACHE_DIR", "XDG_CACHE_HOME",
)  # fmt: skip


class Installs:
    """The engines under one folder."""

    def __init__(self, folder: Path, allow: AllowBlock) -> None:
        self._folder = folder
        self._allow = allow
        folder.mkdir(parents=True, exist_ok=True)

    async def ensure(self, engine: EngineSpec, tell: Callable[[str], None]) -> Path | None:
        """Return the engine's folder or program; None if it needs none or is found on the PATH.

        Args:
            engine: what the catalog says.
            tell: called with what is being done, one line at a time.

        Raises:
            LlmgwError: `engine_install_failed` with the installer's last lines, `refused_by_node`.
        """
        if engine.install_container:
            text = "this agent version does not run engines in containers yet"
            raise LlmgwError("refused_by_node", text)
        if engine.install_path:
            return await asyncio.to_thread(
                allowed_path,
                engine.install_path,
                self._allow.engine_paths,
                "allow.engine_paths",
                "engine_install_failed",
            )
        if not engine.install_pip:
            return None
        index = self._index(engine)
        for requirement in engine.install_pip:
            _refuse_inexact(requirement)
        if engine.install_python and not _PYTHON.fullmatch(engine.install_python):
            text = f"install.python {engine.install_python!r} is no version of Python like 3.12"
            raise LlmgwError("refused_by_node", text)
        home = self._folder / _folder_name(engine)
        waiting = partial(tell, f"waiting for another install of {engine.name}")
        try:
            async with file_lock(home.with_name(home.name + ".lock"), waiting) as lock:
                if not home.exists():
                    await self._install(engine, index, home, tell, lock)
        except OSError as error:
            text = f"{engine.name} cannot be installed to {home}: {error}"
            raise LlmgwError("engine_install_failed", text) from error
        return home

    def _index(self, engine: EngineSpec) -> str:
        allowed = [index.rstrip("/") for index in self._allow.package_indexes]
        if not allowed:
            text = "agent.yaml's allow.package_indexes is empty: nothing is installed here"
            raise LlmgwError("refused_by_node", text)
        index = engine.install_index.rstrip("/") or allowed[0]
        if index not in allowed:
            text = f"package index {redact(index)} is not in agent.yaml's allow.package_indexes"
            raise LlmgwError("refused_by_node", text)
        return index

    async def _install(
        self, engine: EngineSpec, index: str, home: Path, tell: Callable[[str], None], lock: int
    ) -> None:
        staging = home.with_name(home.name + ".staging")
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        try:
            await self._stage(engine, index, staging, tell, lock)
        except LlmgwError:
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
            raise
        staging.rename(home)
        log.info("engine installed", engine=engine.name, version=engine.version)

    async def _stage(
        self, engine: EngineSpec, index: str, staging: Path, tell: Callable[[str], None], lock: int
    ) -> None:
        program = uv.find_uv_bin()
        python = engine.install_python or sys.executable
        tell(f"making an environment for {engine.name} {engine.version}")
        # Relocatable: its programs must not name the staging folder in their first lines.
        venv = ["venv", "--quiet", "--no-config", "--relocatable", "--python", python]
        await _run([program, *venv, "--", str(staging)], tell, lock)
        tell(f"installing {', '.join(engine.install_pip)}")
        into = ["--no-config", "--python", str(staging / "bin" / "python")]
        rules = ["--default-index", index, "--only-binary", ":all:", "--no-progress"]
        install = [program, "pip", "install", *into, *rules, "--", *engine.install_pip]
        await _run(install, tell, lock)


def _refuse_inexact(text: str) -> None:
    """Let name==version pass: an address or a folder would be another index than the allowed."""
    try:
        requirement = Requirement(text)
        specifiers = [(found.operator, found.version) for found in requirement.specifier]
        if requirement.url is None and len(specifiers) == 1:
            operator, version = specifiers[0]
            if operator == "==" and not version.endswith("*"):
                return
    except InvalidRequirement:
        pass
    raise LlmgwError("refused_by_node", f"install.pip {text!r} is not exact, like vllm==0.33.0")


def _folder_name(engine: EngineSpec) -> str:
    content = "\0".join((*engine.install_pip, engine.install_python, engine.install_index))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{engine.name}-{engine.version or 'any'}-{digest}".replace("/", "_")


async def _run(argv: list[str], tell: Callable[[str], None], lock: int) -> None:
    """Run the installer in a group of its own, which ends with this call.

    It inherits the lock: should the agent be killed, the next one waits for what it left running.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        pass_fds=(lock,),
        start_new_session=True,
    )
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        if child.stdout is not None:
            async for line in _lines(child.stdout):
                last.append(redact(line))
                tell(last[-1][:200])
        code = await child.wait()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    if code:
        text = "\n".join(last) or "it said nothing"
        raise LlmgwError("engine_install_failed", f"the installer ended with {code}:\n{text}")


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines of any length, of overlong ones the end."""
    rest = b""
    while block := await stream.read(1 << 16):
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line[-_LINE_BYTES_MAX:].decode(errors="replace").rstrip()
        rest = rest[-_LINE_BYTES_MAX:]
    if rest:
        yield rest.decode(errors="replace").rstrip()
