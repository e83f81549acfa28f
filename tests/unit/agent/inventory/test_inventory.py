"""What a machine has: through the real nvidia-ml-py over a stand-in library, and made-up cards."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from llmgw_agent.inventory import facts as facts_module
from llmgw_agent.inventory.facts import Inventory, boot_id
from llmgw_agent.inventory.simulate import simulated_gpus
from llmgw_agent.settings import AgentSettings
from llmgw_common.clock import FakeClock

STUB = Path(__file__).with_name("nvml_stub.c")


@pytest.fixture(scope="session")
def stub_folder(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the stand-in for libnvidia-ml.so with")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(target), str(STUB)], check=True)
    return folder


def make_inventory(folder, clock=None, **settings):
    values = AgentSettings.model_validate({"data_dir": folder} | settings)
    clock = clock or FakeClock()
    found = Inventory(values, "n1", ("127.0.0.1",), clock, nvml_timeout_s=5.0)
    found.clock = clock  # type: ignore[attr-defined]
    return found


@pytest.fixture
async def inventory(tmp_path, stub_folder, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_folder))
    found = make_inventory(tmp_path)
    yield found
    await found.close()


async def again(inventory):
    """Read once more, and wait for it."""
    inventory.clock.advance(facts_module.REFRESH_S)
    await inventory.node_facts()
    if inventory._refreshing:
        await inventory._refreshing
    return await inventory.node_facts()


async def test_cards_are_read_with_their_names_and_memory_and_absent_fields_stay_absent(inventory):
    found = await inventory.node_facts()
    assert [(g.uuid, g.index, g.name) for g in found.gpus] == [
        ("GPU-stub-0", 0, "Stub H200"),
        ("GPU-stub-1", 1, "Stub H200"),
    ]
    assert found.gpus[0].memory_total_bytes == 141 << 30
    assert found.gpus[0].memory_free_bytes == 100 << 30
    assert found.gpus[0].temperature_celsius is None
    assert found.driver == "999.1"


async def test_a_card_that_falls_off_the_bus_stays_listed_as_unhealthy(inventory, monkeypatch):
    await inventory.node_facts()
    monkeypatch.setenv("LLMGW_STUB", "lost")
    found = await again(inventory)
    health = {g.uuid: (g.is_healthy, g.health_text) for g in found.gpus}
    assert health["GPU-stub-0"] == (True, "")
    assert health["GPU-stub-1"] == (False, "the driver cannot reach it: GPU is lost")


async def test_a_driver_that_hangs_makes_its_cards_unknown_and_blocks_nobody(
    inventory, monkeypatch
):
    await inventory.node_facts()
    monkeypatch.setenv("LLMGW_STUB", "hang")
    inventory._reader._timeout_s = 0.5
    found = await again(inventory)
    assert all(not g.is_healthy for g in found.gpus)
    assert "did not answer" in found.gpus[0].health_text
    assert found.cpu_count > 0
    monkeypatch.setenv("LLMGW_STUB", "2")
    found = await again(inventory)
    assert all(g.is_healthy for g in found.gpus), "a driver that came back is believed"


async def test_while_the_driver_is_asked_the_last_facts_are_told(inventory, monkeypatch):
    before = await inventory.node_facts()
    monkeypatch.setenv("LLMGW_STUB", "hang")
    inventory.clock.advance(facts_module.REFRESH_S)
    async with asyncio.timeout(1.0):
        found = await inventory.node_facts()
    assert found.gpus == before.gpus


async def test_two_who_ask_first_get_the_same_cards(inventory):
    first, second = await asyncio.gather(inventory.node_facts(), inventory.node_facts())
    assert len(first.gpus) == 2
    assert first.gpus == second.gpus


async def test_a_card_whose_name_was_never_known_is_told_in_the_note(inventory, monkeypatch):
    monkeypatch.setenv("LLMGW_STUB", "lost")
    found = await inventory.node_facts()
    assert [g.uuid for g in found.gpus] == ["GPU-stub-0"]
    assert found.gpu_note == "card 1 cannot be reached: GPU is lost"


async def test_a_lost_card_that_comes_back_is_healthy_again(inventory, monkeypatch):
    await inventory.node_facts()
    monkeypatch.setenv("LLMGW_STUB", "lost")
    await again(inventory)
    monkeypatch.setenv("LLMGW_STUB", "2")
    found = await again(inventory)
    assert [(g.uuid, g.is_healthy) for g in found.gpus] == [
        ("GPU-stub-0", True),
        ("GPU-stub-1", True),
    ]


async def test_a_driver_that_was_unloaded_leaves_its_cards_listed_with_the_reason(
    inventory, monkeypatch
):
    await inventory.node_facts()
    monkeypatch.setenv("LLMGW_STUB", "none")
    found = await again(inventory)
    assert len(found.gpus) == 2
    assert all("no GPUs by NVML" in g.health_text for g in found.gpus)
    assert found.driver == "999.1"


async def test_a_data_folder_under_home_or_not_made_yet_has_a_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = psutil.disk_usage(str(tmp_path)).total
    for folder in ("~", "~/not/made/yet", tmp_path / "neither"):
        inventory = make_inventory(folder, inventory={"nvml": "off"})
        found = await inventory.node_facts()
        assert found.disk_total_bytes == wanted
        assert found.disk_free_bytes > 0
        assert found.gpu_note == "NVML is switched off"
    assert facts_module._disk_of(Path("~/not/made/yet")) == tmp_path


async def test_a_library_without_a_driver_is_a_cpu_node_that_says_so(inventory, monkeypatch):
    monkeypatch.setenv("LLMGW_STUB", "none")
    found = await inventory.node_facts()
    assert found.gpus == ()
    assert "no GPUs by NVML" in found.gpu_note


async def test_no_library_is_a_cpu_node_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    inventory = make_inventory(tmp_path)
    found = await inventory.node_facts()
    assert found.gpus == ()
    assert found.gpu_note
    assert found.boot_id == boot_id()
    assert found.memory_total_bytes > found.memory_free_bytes > 0


async def test_a_simulated_node_has_the_same_cards_each_time(tmp_path):
    inventory = make_inventory(tmp_path, inventory={"simulate": "8xH200"}, labels={"rack": "r7"})
    found = await inventory.node_facts()
    assert found.is_simulated
    assert found.labels == {"rack": "r7"}
    assert len({g.uuid for g in found.gpus}) == 8
    assert found.gpus[0].memory_total_bytes == 141 << 30
    assert found.gpus == simulated_gpus("8xH200", "n1")
    assert found.gpus[0].uuid != simulated_gpus("8xH200", "n2")[0].uuid
