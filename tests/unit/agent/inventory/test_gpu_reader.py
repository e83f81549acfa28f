"""One child at a time asks the driver; a child that nobody can end is not joined by others."""

import asyncio
import json

import pytest

from llmgw_agent.inventory import gpu_reader
from llmgw_agent.inventory.gpu_reader import GpuReader

CARD = {"uuid": "GPU-1", "index": 0, "name": "H200"}
GOOD = json.dumps({"gpus": [CARD], "lost": {}, "driver": "9", "note": ""}).encode()


class ScriptedChild:
    """A child that says `output`, or hangs in the kernel until it is let go."""

    def __init__(self, output=GOOD, hangs=False):
        self.output = output
        self.returncode: int | None = None
        self.kills = 0
        self._over = asyncio.Event()
        if not hangs:
            self.let_go()

    def let_go(self):
        self.returncode = 0
        self._over.set()

    async def communicate(self):
        await self._over.wait()
        return self.output, b""

    async def wait(self):
        await self._over.wait()
        return 0

    def kill(self):
        self.kills += 1


def reader_of(*children):
    started = []
    script = iter(children)

    async def start():
        started.append(next(script))
        if isinstance(started[-1], OSError):
            raise started[-1]
        return started[-1]

    reader = GpuReader(timeout_s=0.02, start=start)
    return reader, started


async def test_a_child_that_cannot_be_ended_is_the_only_one(monkeypatch):
    monkeypatch.setattr(gpu_reader, "_KILL_S", 0.02)
    stuck = ScriptedChild(hangs=True)
    reader, started = reader_of(ScriptedChild(), stuck, ScriptedChild())
    before = await reader.read(None)
    for words in ("did not answer", "still hangs", "still hangs"):
        found = await reader.read(before)
        assert words in found.note
        assert [(g.uuid, g.is_healthy) for g in found.facts] == [("GPU-1", False)]
    assert len(started) == 2
    assert stuck.kills == 1
    stuck.let_go()
    found = await reader.read(found)
    assert [g.is_healthy for g in found.facts] == [True]


@pytest.mark.parametrize(
    "output", [b"", b"{", b"[]", b"{}", b"7", b'{"gpus": [{}], "lost": {}, "driver": 1}']
)
async def test_a_child_that_says_nonsense_leaves_what_was_known_as_unhealthy(output):
    reader, _ = reader_of(ScriptedChild(), ScriptedChild(output))
    found = await reader.read(await reader.read(None))
    assert [(g.uuid, g.is_healthy) for g in found.facts] == [("GPU-1", False)]
    assert "exit code" in found.note


async def test_a_machine_that_can_start_no_child_says_so():
    reader, _ = reader_of(OSError(11, "no more processes"))
    found = await reader.read(None)
    assert found.facts == ()
    assert "no more processes" in found.note


async def test_a_card_that_is_listed_no_more_is_unhealthy_and_its_driver_is_kept():
    none = json.dumps({"gpus": [], "lost": {}, "driver": "", "note": ""}).encode()
    reader, _ = reader_of(ScriptedChild(), ScriptedChild(none))
    found = await reader.read(await reader.read(None))
    assert found.facts[0].health_text == "the driver no longer lists it"
    assert found.driver == "9"
