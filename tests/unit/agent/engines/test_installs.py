"""What a catalog cannot make a node install: refused before anything runs."""

import pytest

from llmgw_agent.engines.installs import Installs
from llmgw_agent.settings import AllowBlock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import EngineSpec

INDEX = "https://index.example.org/simple"


async def refusal(folder, allow=None, **engine):
    told: list[str] = []
    installs = Installs(folder / "engines", allow or AllowBlock(package_indexes=[INDEX]))
    spec = EngineSpec(**({"name": "e", "kind": "simulated", "version": "1"} | engine))
    with pytest.raises(LlmgwError) as caught:
        await installs.ensure(spec, told.append)
    assert told == []
    assert list((folder / "engines").iterdir()) == []
    return caught.value


async def test_an_index_that_the_owner_did_not_allow_is_refused(tmp_path):
    error = await refusal(
        tmp_path, install_pip=("e==1",), install_index="https://me:canary@evil.example.org/simple"
    )
    assert error.code == "refused_by_node"
    assert "allow.package_indexes" in error.message
    assert "canary" not in error.message


async def test_a_node_that_allows_no_index_installs_nothing(tmp_path):
    error = await refusal(tmp_path, AllowBlock(package_indexes=[]), install_pip=("e==1",))
    assert error.code == "refused_by_node"
    assert "is empty" in error.message


@pytest.mark.parametrize(
    "requirement",
    [
        "e",
        "e>=1",
        "e==1.*",
        "e==1,==2",
        "e===1",
        "e @ https://evil.example.org/e-1-py3-none-any.whl",
        "e @ file:///tmp/e-1-py3-none-any.whl#==1",
        "git+https://evil.example.org/e@main#egg=e==1",
        "./folder==1",
        "/tmp/folder",
        "--index-url=https://evil.example.org/==1",
        "-rrequirements.txt==1",
        "",
    ],
)
async def test_what_is_no_exact_requirement_of_the_index_is_refused(tmp_path, requirement):
    error = await refusal(tmp_path, install_pip=("fine==1", requirement))
    assert error.code == "refused_by_node"
    assert "not exact" in error.message


@pytest.mark.parametrize("python", ["/tmp/evil", "./python", "3.12; ls", "pypy", "--help", "3."])
async def test_an_interpreter_is_named_by_version_only(tmp_path, python):
    error = await refusal(tmp_path, install_pip=("e==1",), install_python=python)
    assert error.code == "refused_by_node"
    assert "no version of Python" in error.message


async def test_a_container_is_refused_in_words(tmp_path):
    error = await refusal(tmp_path, install_container="image@sha256:" + "0" * 64)
    assert error.code == "refused_by_node"
    assert "containers" in error.message


async def test_a_path_is_used_unchanged_only_below_the_allowed_folders(tmp_path):
    allowed, outside = tmp_path / "opt", tmp_path / "outside"
    for folder in (allowed, outside):
        folder.mkdir()
        (folder / "engine").write_text("#!/bin/sh\n")
    (allowed / "link").symlink_to(outside / "engine")
    allow = AllowBlock(engine_paths=[allowed])
    for path in (outside / "engine", allowed / "link", allowed / ".." / "outside" / "engine"):
        error = await refusal(tmp_path, allow, install_path=str(path))
        assert error.code == "refused_by_node"
        assert "allow.engine_paths" in error.message
    error = await refusal(tmp_path, allow, install_path=str(allowed / "none"))
    assert error.code == "engine_install_failed"
    spec = EngineSpec(name="e", kind="x", version="1", install_path=str(allowed / "engine"))
    installs = Installs(tmp_path / "engines", allow)
    assert await installs.ensure(spec, lambda _: None) == allowed / "engine"


async def test_an_engine_that_needs_no_install_gets_none(tmp_path):
    spec = EngineSpec(name="e", kind="simulated", version="1")
    assert await Installs(tmp_path, AllowBlock()).ensure(spec, lambda _: None) is None
