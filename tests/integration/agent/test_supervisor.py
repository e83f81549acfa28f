"""The supervisor over real engine processes: start, adopt, stop, and what it must never signal."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import psutil
import pytest

from llmgw_agent.engines.installs import Installs
from llmgw_agent.settings import AllowBlock
from llmgw_agent.supervisor import processes
from llmgw_agent.supervisor.record import Records
from llmgw_agent.supervisor.stop import end_processes
from llmgw_agent.supervisor.supervisor import Supervisor
from llmgw_agent.supervisor.task import Surroundings
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.clock import SystemClock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.facts import ShardReport
from llmgw_common.protocol.messages import EngineSpec
from llmgw_common.states import ShardState
from tests.agent_builders import make_start, make_stop
from tests.harness import free_port

S = ShardState

#: Engines outlive their supervisors here, but not this test process: it must reap them.
CHILDREN: list[subprocess.Popen[bytes]] = []


@asynccontextmanager
async def supervisor_in(folder, name="agent-a"):
    seen: list[ShardReport] = []
    low = free_port()
    around = Surroundings(
        installs=Installs(folder / "engines", AllowBlock()),
        weights=WeightsStore(folder / "weights", AllowBlock()),
        records=Records(folder / "shards"),
        allow=AllowBlock(),
        clock=SystemClock(),
        host="127.0.0.1",
        band=(low, low + 20),
        logs=folder / "logs",
        keys=folder / "keys",
        agent=name,
        taken_ports=set,
    )
    supervisor = Supervisor(around, seen.append)
    supervisor.seen = seen  # type: ignore[attr-defined]
    try:
        yield supervisor
    finally:
        await supervisor.let_go()
        CHILDREN.extend(t._process for t in supervisor._tasks.values() if t._process)


async def until(supervisor, state, shard="shd-1", limit_s=20.0):
    async with asyncio.timeout(limit_s):
        while True:
            for report in supervisor.reports():
                if report.shard_id == shard and report.state is state:
                    return report
            await asyncio.sleep(0.02)


def start(**args):
    return make_start(args={"load-s": 0.1} | args)


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    for pid, mark in list(processes.marked()):
        if mark.agent in ("agent-a", "agent-b", "a"):  # this module's own agents only
            os.kill(pid, signal.SIGKILL)
    while CHILDREN:
        CHILDREN.pop().wait(10)


async def test_a_shard_walks_its_steps_and_is_ready_with_a_url_and_a_key_of_its_own(tmp_path):
    async with supervisor_in(tmp_path) as supervisor:
        supervisor.start(start())
        report = await until(supervisor, S.READY)
        states = list(dict.fromkeys(r.state for r in supervisor.seen))
        assert states == [S.INSTALLING, S.FETCHING, S.STARTING, S.LOADING, S.READY]
        assert report.url.startswith("http://127.0.0.1:")
        key = report.access_key.get_secret_value()
        assert len(key) >= 43
        assert key not in " ".join(psutil.Process(report.pid).cmdline())
        supervisor.stop(make_stop())
        await until(supervisor, S.STOPPED)
        assert processes.of_shard("shd-1") == []
        assert not list((tmp_path / "keys").iterdir())
        assert not list((tmp_path / "shards").glob("*.json"))


async def test_a_repeated_start_changes_nothing_and_an_older_epoch_is_refused(tmp_path):
    async with supervisor_in(tmp_path) as supervisor:
        supervisor.start(start())
        report = await until(supervisor, S.READY)
        supervisor.start(start())
        assert (await until(supervisor, S.READY)).pid == report.pid
        with pytest.raises(LlmgwError, match="older"):
            supervisor.start(make_start(epoch=0))
        supervisor.stop(make_stop())
        await until(supervisor, S.STOPPED)
        supervisor.start(start())
        assert supervisor.reports()[0].state is S.STOPPED


async def test_a_stop_ends_a_start_at_any_moment(tmp_path):
    for delay_s in (0.0, 0.05, 0.3):
        folder = tmp_path / str(delay_s)
        async with supervisor_in(folder) as supervisor:
            supervisor.start(make_start(args={"load-s": 30}))
            await asyncio.sleep(delay_s)
            supervisor.stop(make_stop())
            await until(supervisor, S.STOPPED)
            assert processes.of_shard("shd-1") == []


async def test_a_new_agent_adopts_the_same_process_and_can_end_it(tmp_path):
    async with supervisor_in(tmp_path) as first:
        first.start(start())
        report = await until(first, S.READY)
    async with supervisor_in(tmp_path) as second:
        await second.adopt()
        adopted = await until(second, S.READY)
        assert (adopted.pid, adopted.is_adopted, adopted.epoch) == (report.pid, True, 1)
        assert adopted.access_key == report.access_key
        assert adopted.ready_s is not None
        os.kill(report.pid, signal.SIGKILL)
        failed = await until(second, S.FAILED)
        assert failed.error.log_tail[-1] == "model loaded"


async def test_an_engine_that_ended_meanwhile_is_told_and_not_started_again(tmp_path):
    async with supervisor_in(tmp_path) as first:
        first.start(start())
        report = await until(first, S.READY)
    os.kill(report.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(report.pid)], timeout=5)
    async with supervisor_in(tmp_path) as second:
        await second.adopt()
        failed = await until(second, S.FAILED)
        assert "while no agent watched" in failed.error.text
        assert processes.of_shard("shd-1") == []


async def test_a_record_whose_pid_belongs_to_a_stranger_signals_nobody(tmp_path):
    async with supervisor_in(tmp_path) as first:
        first.start(start())
        report = await until(first, S.READY)
    os.kill(report.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(report.pid)], timeout=5)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        records = Records(tmp_path / "shards")
        (record,) = records.read_all()
        stolen = {"pid": stranger.pid, "process_started": processes.start_time(stranger.pid)}
        records.write(record.model_copy(update=stolen))
        async with supervisor_in(tmp_path) as second:
            await second.adopt()
            await until(second, S.FAILED)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_launch_whose_pid_was_never_written_is_found_by_its_mark(tmp_path):
    async with supervisor_in(tmp_path) as first:
        first.start(start())
        report = await until(first, S.READY)
    records = Records(tmp_path / "shards")
    (record,) = records.read_all()
    records.write(record.model_copy(update={"pid": None, "process_started": None}))
    async with supervisor_in(tmp_path) as second:
        await second.adopt()
        assert (await until(second, S.READY)).pid == report.pid


async def test_a_marked_process_without_a_record_is_ended_but_not_another_agents(tmp_path):
    async with supervisor_in(tmp_path, "agent-a") as first:
        first.start(start())
        await until(first, S.READY)
    Records(tmp_path / "shards").remove("shd-1")
    async with supervisor_in(tmp_path / "other", "agent-b") as other:
        await other.adopt()
        assert processes.of_shard("shd-1")
    async with supervisor_in(tmp_path, "agent-a") as second:
        await second.adopt()
        assert processes.of_shard("shd-1") == []


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
        start_new_session=True)
print("children started", flush=True)
time.sleep(600)
"""


async def test_children_in_other_groups_that_ignore_sigterm_are_ended_too(tmp_path):
    marks = {"LLMGW_SHARD_ID": "shd-stubborn", "LLMGW_EPOCH": "1", "LLMGW_AGENT": "a"}
    parent = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        env=os.environ | marks,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    assert len(processes.of_shard("shd-stubborn")) == 4
    outcome = await end_processes("shd-stubborn", grace_s=0.5, host="", port=0, clock=SystemClock())
    parent.communicate()
    assert outcome.is_proven
    assert outcome.needed == "SIGKILL"
    assert processes.of_shard("shd-stubborn") == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"kind": "vllm"}, "engine kind vllm is not allowed"),
        ({"kind": "simulated", "install_container": "i@sha256:x"}, "containers"),
        ({"kind": "simulated", "install_path": "/bin/sh"}, "allow.engine_paths"),
        (
            {"kind": "simulated", "install_pip": ("x==1",), "install_index": "https://evil/simple"},
            "allow.package_indexes",
        ),
    ],
)
async def test_what_the_nodes_owner_does_not_allow_is_refused_in_words(tmp_path, engine, words):
    spec = EngineSpec(**({"name": "e", "version": "1"} | engine))
    async with supervisor_in(tmp_path) as supervisor:
        supervisor.start(make_start(engine=spec))
        failed = await until(supervisor, S.FAILED)
    assert failed.error.kind == "refused_by_node"
    assert words in failed.error.text


async def test_a_start_without_progress_ends_at_its_deadline_with_the_step_named(tmp_path):
    async with supervisor_in(tmp_path) as supervisor:
        supervisor.start(make_start(args={"load-s": 60}, startup_timeout_s=1.5))
        failed = await until(supervisor, S.FAILED)
        assert failed.error.kind == "timeout"
        assert failed.error.step == "await_ready"
        assert processes.of_shard("shd-1") == []


async def test_a_port_held_by_a_stranger_is_passed_over(tmp_path):
    async with supervisor_in(tmp_path) as supervisor:
        low, _ = supervisor._around.band
        stranger = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", low)
        async with stranger:
            supervisor.start(make_start(port=low, args={"load-s": 0.1}))
            report = await until(supervisor, S.READY)
            assert report.port != low
            supervisor.stop(make_stop())
            await until(supervisor, S.STOPPED)


async def test_ended_shards_are_reported_for_a_while_only(tmp_path):
    async with supervisor_in(tmp_path) as supervisor:
        supervisor.start(make_start(engine=EngineSpec(name="e", kind="vllm", version="1")))
        await until(supervisor, S.FAILED)
        clock = supervisor._around.clock
        later = time.monotonic() + 601
        clock.monotonic_s = lambda: later
        assert supervisor.reports() == ()
