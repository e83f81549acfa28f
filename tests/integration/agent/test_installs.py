"""Engine installs from a real package index on loopback, by the real installer."""

import asyncio
import functools
import http.server
import io
import threading
import zipfile

import pytest

from llmgw_agent.engines.installs import Installs
from llmgw_agent.settings import AllowBlock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec


def wheel(name, version, requires=""):
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = '{version}'\n")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


@pytest.fixture
def index(tmp_path):
    """A package index with `tinyengine` 1.0, and 2.0 that needs what nobody has."""
    folder = tmp_path / "index" / "simple" / "tinyengine"
    folder.mkdir(parents=True)
    files = {
        "tinyengine-1.0-py3-none-any.whl": wheel("tinyengine", "1.0"),
        "tinyengine-2.0-py3-none-any.whl": wheel(
            "tinyengine", "2.0", "Requires-Dist: nobody-has-this\n"
        ),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    links = "".join(f'<a href="{name}">{name}</a>' for name in files)
    (folder / "index.html").write_text(f"<html><body>{links}</body></html>")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "index"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def engine(version="1.0", **fields):
    defaults = {"name": "tiny", "kind": "simulated", "version": version}
    return EngineSpec(**(defaults | {"install_pip": (f"tinyengine=={version}",)} | fields))


def installs(folder, index):
    return Installs(folder / "engines", AllowBlock(package_indexes=[index]))


async def test_an_engine_gets_an_environment_of_its_own_once(tmp_path, index):
    told: list[str] = []
    found = installs(tmp_path, index)
    home = await found.ensure(engine(), told.append)
    assert home is not None
    assert list(home.glob("lib/python*/site-packages/tinyengine.py"))
    assert any("installing tinyengine==1.0" in line for line in told)
    told.clear()
    assert await found.ensure(engine(), told.append) == home
    assert told == []


async def test_two_starts_at_once_install_once(tmp_path, index):
    told: list[str] = []
    found, other = installs(tmp_path, index), installs(tmp_path, index)
    homes = await asyncio.gather(
        found.ensure(engine(), told.append), other.ensure(engine(), told.append)
    )
    assert homes[0] == homes[1]
    assert sum("making an environment" in line for line in told) == 1


async def test_a_failed_install_shows_the_installers_words_and_leaves_the_good_one(tmp_path, index):
    found = installs(tmp_path, index)
    good = await found.ensure(engine(), lambda _: None)
    with pytest.raises(LlmgwError, match="nobody-has-this") as caught:
        await found.ensure(engine("2.0"), lambda _: None)
    assert caught.value.code == "engine_install_failed"
    assert good is not None
    assert good.exists()
    whole = [p.name for p in (tmp_path / "engines").iterdir() if p.is_dir()]
    assert [name for name in whole if not name.endswith(".staging")] == [good.name]


async def test_an_install_that_was_killed_half_way_is_done_again(tmp_path, index):
    found = installs(tmp_path, index)
    doing = asyncio.create_task(found.ensure(engine(), lambda _: None))
    await asyncio.sleep(0)
    doing.cancel()
    await asyncio.gather(doing, return_exceptions=True)
    home = await found.ensure(engine(), lambda _: None)
    assert home is not None
    assert list(home.glob("lib/python*/site-packages/tinyengine.py"))


async def test_the_installer_sees_no_credentials(tmp_path, index, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.setenv("LLMGW_AGENT__JOIN_TOKEN", "canary")
    seen = []
    real = asyncio.create_subprocess_exec

    async def spy(*argv, **kwargs):
        seen.append(kwargs["env"])
        return await real(*argv, **kwargs)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    await installs(tmp_path, index).ensure(engine(), lambda _: None)
    assert seen
    assert all("canary" not in value for env in seen for value in env.values())
