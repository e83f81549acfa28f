"""All shards of this machine: takes commands, adopts what runs, reports what is.

Rule 1: a start command seen before (same shard, same epoch) gets the same answer and starts
nothing; one of an older epoch is refused.
Rule 2: what an earlier agent process launched is adopted, never restarted; what has no record is an
orphan and is ended.
Rule 3: ended shards are reported for a while, so that a server that was away hears of them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
from pydantic import SecretStr

from llmgw_agent.inventory.facts import boot_id
from llmgw_agent.supervisor import exits, processes
from llmgw_agent.supervisor.record import ShardRecord
from llmgw_agent.supervisor.shard import ShardStatus, failed, report
from llmgw_agent.supervisor.stop import end_processes
from llmgw_agent.supervisor.task import ShardTask, Surroundings
from llmgw_common.errors import LlmgwError
from llmgw_common.mint import new_secret
from llmgw_common.protocol.facts import ShardError, ShardReport
from llmgw_common.protocol.messages import StartShard, StopShard
from llmgw_common.states import ShardState

log = structlog.get_logger(__name__)

#: Ended shards are reported for this long.
REPORTED_AFTER_END_S: Final = 600.0
#: Epochs of ended shards that are remembered.
_REMEMBERED_MAX: Final = 10_000


class Supervisor:
    """See the module's rules."""

    def __init__(self, around: Surroundings, on_change: Callable[[ShardReport], None]) -> None:
        self._around = replace(around, taken_ports=self._taken_ports)
        self._on_change = on_change
        self._tasks: dict[str, ShardTask] = {}
        self._epochs: dict[str, int] = {}

    # --- commands --------------------------------------------------------------------------------

    def start(self, command: StartShard) -> None:
        """Begin a start; the rest is reported.

        Raises:
            LlmgwError: `conflict`, an older epoch or a shard that still runs.
        """
        known_epoch = self._epochs.get(command.shard_id)
        if known_epoch is not None and command.epoch <= known_epoch:
            if command.epoch == known_epoch:
                return
            text = f"epoch {command.epoch} of {command.shard_id} is older than {known_epoch}"
            raise LlmgwError("conflict", text)
        task = self._tasks.get(command.shard_id)
        if task and not task.status.is_over:
            raise LlmgwError("conflict", f"{command.shard_id} still runs with an older epoch")
        now_s = self._around.clock.monotonic_s()
        status = ShardStatus(
            command=command,
            access_key=SecretStr(new_secret()),
            state=ShardState.PENDING,
            since_at_s=now_s,
            created_at_s=now_s,
        )
        self._add(status).start()

    def stop(self, command: StopShard) -> None:
        """Begin a stop; a shard that is not here is stopped already.

        Raises:
            LlmgwError: `conflict`, the command is of an older epoch than what runs.
        """
        task = self._tasks.get(command.shard_id)
        if task is None:
            return
        if command.epoch < task.status.command.epoch:
            text = f"epoch {command.epoch} of {command.shard_id} is over; a newer one runs"
            raise LlmgwError("conflict", text)
        task.stop(command.grace_s, command.text)

    def log_file(self, shard_id: str) -> Path:
        """Return the log of the shard's newest epoch.

        Raises:
            LlmgwError: `not_found`.
        """
        task = self._tasks.get(shard_id)
        if task is None or not task.log_file.exists():
            raise LlmgwError("not_found", f"shard {shard_id} has no log on this node")
        return task.log_file

    # --- reports ---------------------------------------------------------------------------------

    def reports(self) -> tuple[ShardReport, ...]:
        """Return every shard's whole status; ended ones for a while."""
        now_s = self._around.clock.monotonic_s()
        for shard_id, task in list(self._tasks.items()):
            is_old = now_s - task.status.since_at_s > REPORTED_AFTER_END_S
            if task.status.is_over and is_old and not self._could_not_end(task.status):
                del self._tasks[shard_id]
        return tuple(report(task.status, now_s) for task in self._tasks.values())

    def epochs_seen(self) -> dict[str, int]:
        """Return the highest epoch per replica that this agent remembers."""
        found: dict[str, int] = {}
        for task in self._tasks.values():
            command = task.status.command
            found[command.replica_id] = max(found.get(command.replica_id, 0), command.epoch)
        return found

    # --- life ------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Take over what an earlier agent process left; end orphans."""
        records = await asyncio.to_thread(self._around.records.read_all)
        for record in records:
            await self._adopt(record)
        known = {record.command.shard_id for record in records}
        found = await asyncio.to_thread(lambda: list(processes.marked()))
        orphans = {
            mark.shard_id
            for _, mark in found
            if mark.agent == self._around.agent and mark.shard_id not in known
        }
        for shard_id in sorted(orphans):
            log.warning("engine without a record: ended as an orphan", shard_id=shard_id)
            await self._end_by_mark(shard_id)

    async def stop_all(self, grace_s: float) -> None:
        """End every engine (demo, uninstall); returns when the ends are proven or have failed."""
        for task in self._tasks.values():
            task.stop(grace_s, "the agent ends its engines")
        await asyncio.gather(*(task.stopped() for task in self._tasks.values()))

    async def let_go(self) -> None:
        """Stop watching; engines go on."""
        await asyncio.gather(*(task.let_go() for task in self._tasks.values()))

    # --- inside ----------------------------------------------------------------------------------

    def _add(self, status: ShardStatus) -> ShardTask:
        shard_id = status.command.shard_id
        task = ShardTask(status, self._around, self._changed)
        self._tasks[shard_id] = task
        self._epochs[shard_id] = status.command.epoch
        while len(self._epochs) > _REMEMBERED_MAX:
            self._epochs.pop(next(iter(self._epochs)))
        return task

    def _changed(self, status: ShardStatus) -> None:
        self._on_change(report(status, self._around.clock.monotonic_s()))

    def _taken_ports(self) -> set[int]:
        return {t.status.port for t in self._tasks.values() if t.status.port}

    @staticmethod
    def _could_not_end(status: ShardStatus) -> bool:
        return status.error is not None and status.error.step == "stop"

    async def _adopt(self, record: ShardRecord) -> None:
        command, clock = record.command, self._around.clock
        now_s, now_unix_s = clock.monotonic_s(), clock.now().timestamp()
        ready_unix_s = record.ready_unix_s
        was_ready = ready_unix_s is not None
        status = ShardStatus(
            command=command,
            access_key=record.access_key,
            state=ShardState.READY if was_ready else ShardState.STARTING,
            since_at_s=now_s,
            created_at_s=now_s - max(now_unix_s - record.created_unix_s, 0.0),
            ready_at_s=None if ready_unix_s is None else now_s - max(now_unix_s - ready_unix_s, 0),
            host=record.host,
            port=record.port,
        )
        task = self._add(status)
        found = await asyncio.to_thread(_find, record)
        if found:
            pid, started = found
            self._around.weights.use(command.source, command.shard_id)
            task.adopt(record, pid, started)
            log.info("engine adopted", shard_id=command.shard_id, pid=pid, was_ready=was_ready)
            return
        await self._end_by_mark(command.shard_id)
        text = "the engine ended while no agent watched it"
        if record.boot_id != boot_id():
            text = "the machine was restarted"
        tail = await asyncio.to_thread(exits.tail, task.log_file)
        error = ShardError(step="watch", text=text, log_tail=tail)
        task.status = failed(status, error, now_s)
        await asyncio.to_thread(self._around.records.remove, command.shard_id)
        log.warning("recorded engine is gone", shard_id=command.shard_id, why=text)

    async def _end_by_mark(self, shard_id: str) -> None:
        await end_processes(shard_id, grace_s=5.0, host="", port=0, clock=self._around.clock)


def _find(record: ShardRecord) -> tuple[int, int] | None:
    """Return (pid, start time) of the recorded process if it is the very one, else None."""
    command = record.command
    if record.boot_id != boot_id():
        return None
    if record.pid is not None and record.process_started is not None:
        is_it = processes.is_it(record.pid, record.process_started, command.shard_id, command.epoch)
        return (record.pid, record.process_started) if is_it else None
    # Launched, but the agent ended before it could write the pid: the mark finds it.
    for pid in sorted(processes.of_shard(command.shard_id, command.epoch)):
        started = processes.start_time(pid)
        if started is not None:
            return pid, started
    return None
