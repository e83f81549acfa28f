"""Engine programs on this machine: a virtual environment per engine name, version and requirements.

Rule 1: made in a staging folder and renamed when whole; a broken install never replaces a good one.
Rule 2: one installer at a time per engine (a file lock, so it holds between processes too).
Rule 3: exact versions, wheels only, one allowed index, and none of the agent's credentials in the
installer's environment.
"""

import asyncio
import hashlib
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uv

from llmgw_agent.allowed import allowed_path
from llmgw_agent.file_lock import file_lock
from llmgw_agent.settings import AllowBlock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec

log = structlog.get_logger(__name__)

#: Lines of the installer's output that an error shows.
_LAST_LINES: Final = 15
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
        index = engine.install_index or self._allow.package_indexes[0]
        if index not in self._allow.package_indexes:
            text = f"package index {index} is not in agent.yaml's allow.package_indexes"
            raise LlmgwError("refused_by_node", text)
        home = self._folder / _folder_name(engine)
        waiting = partial(tell, f"waiting for another install of {engine.name}")
        async with file_lock(home.with_name(home.name + ".lock"), waiting):
            if not home.exists():
                await self._install(engine, index, home, tell)
        return home

    async def _install(
        self, engine: EngineSpec, index: str, home: Path, tell: Callable[[str], None]
    ) -> None:
        staging = home.with_name(home.name + ".staging")
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        program = uv.find_uv_bin()
        python = engine.install_python or sys.executable
        tell(f"making an environment for {engine.name} {engine.version}")
        await _run([program, "venv", "--quiet", "--python", python, "--", str(staging)], tell)
        tell(f"installing {', '.join(engine.install_pip)}")
        into = ["--python", str(staging / "bin" / "python")]
        rules = ["--default-index", index, "--only-binary", ":all:", "--no-progress"]
        await _run([program, "pip", "install", *into, *rules, "--", *engine.install_pip], tell)
        staging.rename(home)
        log.info("engine installed", engine=engine.name, version=engine.version)


def _folder_name(engine: EngineSpec) -> str:
    content = "\0".join((*engine.install_pip, engine.install_python, engine.install_index))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{engine.name}-{engine.version or 'any'}-{digest}".replace("/", "_")


async def _run(argv: list[str], tell: Callable[[str], None]) -> None:
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        if child.stdout is not None:
            async for line in child.stdout:
                last.append(line.decode(errors="replace").rstrip())
                tell(last[-1][:200])
        code = await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if code:
        text = "\n".join(last) or "it said nothing"
        raise LlmgwError("engine_install_failed", f"the installer ended with {code}:\n{text}")
