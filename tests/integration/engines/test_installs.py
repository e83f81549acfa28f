"""The real installer over an index that we script: what a kill, a cancel or a refusal leaves."""

import asyncio
import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile

import psutil
import pytest

from llmgw_agent.engines.installs import Installs
from llmgw_agent.settings import AllowBlock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec
from tests.scripted_engine import Exchange, ScriptedEngine, whole

ENGINE = EngineSpec(name="tiny", kind="simulated", version="1.0", install_pip=("tinyengine==1.0",))


def make_wheel():
    out = io.BytesIO()
    info = "tinyengine-1.0.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("tinyengine.py", "def main():\n    print('tiny engine runs')\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyengine\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny = tinyengine:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


class Index:
    """An index with one wheel; while `is_open` is not set, it takes requests and says nothing."""

    def __init__(self):
        self.wheel = make_wheel()
        self.is_open = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.answer: bytes | None = None

    async def __call__(self, exchange: Exchange) -> None:
        self.is_asked.set()
        await self.is_open.wait()
        path = exchange.head.split(b" ", 2)[1]
        name = "tinyengine-1.0-py3-none-any.whl"
        if self.answer:
            await exchange.send(self.answer)
        elif path.endswith(b".whl"):
            is_head = exchange.head.startswith(b"HEAD")
            await exchange.send(whole(b"" if is_head else self.wheel, content_type="a/b"))
        else:
            digest = hashlib.sha256(self.wheel).hexdigest()
            page = f'<a href="/files/{digest}/{name}#sha256={digest}">{name}</a>'
            await exchange.send(whole(page.encode(), content_type="text/html"))


@pytest.fixture
async def index(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    script = Index()
    async with ScriptedEngine(script) as server:
        script.url = f"http://127.0.0.1:{server.port}/simple"  # type: ignore[attr-defined]
        yield script


def installs(folder, index):
    return Installs(folder / "engines", AllowBlock(package_indexes=[index.url + "/"]))


def installers(folder):
    """Processes that work in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(str(folder / "engines") in word for word in line) and line[0] != sys.executable:
            found.append(process)
    return found


async def test_an_installed_program_runs_from_where_it_is(tmp_path, index):
    index.is_open.set()
    home = await installs(tmp_path, index).ensure(ENGINE, lambda _: None)
    assert home is not None
    done = await asyncio.to_thread(
        subprocess.run, [home / "bin" / "tiny"], capture_output=True, check=True
    )
    assert done.stdout == b"tiny engine runs\n"


async def test_an_install_that_is_cancelled_leaves_no_installer_running(tmp_path, index):
    doing = asyncio.create_task(installs(tmp_path, index).ensure(ENGINE, lambda _: None))
    async with asyncio.timeout(20):
        await index.is_asked.wait()
    assert installers(tmp_path)
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)
    assert installers(tmp_path) == []
    index.is_open.set()
    assert await installs(tmp_path, index).ensure(ENGINE, lambda _: None) is not None


async def test_after_a_kill_the_next_agent_waits_for_the_installer_that_was_left(tmp_path, index):
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from llmgw_agent.engines.installs import Installs\n"
        "from llmgw_agent.settings import AllowBlock\n"
        "from llmgw_common.protocol.messages import EngineSpec\n"
        "allow = AllowBlock(package_indexes=[sys.argv[2]])\n"
        "spec = EngineSpec.model_validate_json(sys.argv[3])\n"
        "asyncio.run(Installs(Path(sys.argv[1]), allow).ensure(spec, print))\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "engines"), index.url,
        ENGINE.model_dump_json(), stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(20):
        await index.is_asked.wait()
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    (left,) = installers(tmp_path)
    told: list[str] = []
    doing = asyncio.create_task(installs(tmp_path, index).ensure(ENGINE, told.append))
    async with asyncio.timeout(5):
        while not told:
            await asyncio.sleep(0.01)
    assert told == ["waiting for another install of tiny"]
    left.kill()
    index.is_open.set()
    home = await doing
    assert home is not None
    assert list(home.glob("lib/python*/site-packages/tinyengine.py"))


async def test_an_index_that_refuses_is_told_in_the_installers_words(tmp_path, index):
    index.is_open.set()
    index.answer = b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n"
    with pytest.raises(LlmgwError, match=r"403|[Ff]orbidden") as caught:
        await installs(tmp_path, index).ensure(ENGINE, lambda _: None)
    assert caught.value.code == "engine_install_failed"
    assert [p.suffix for p in (tmp_path / "engines").iterdir()] == [".lock"]


async def test_a_folder_that_cannot_be_written_is_an_install_that_failed(tmp_path, index):
    found = installs(tmp_path, index)
    (tmp_path / "engines").rmdir()
    (tmp_path / "engines").write_text("a file")
    with pytest.raises(LlmgwError, match="cannot be installed") as caught:
        await found.ensure(ENGINE, lambda _: None)
    assert caught.value.code == "engine_install_failed"
