"""One shard's walk: install -> fetch -> launch -> await ready -> watch, each step cancellable.

Rule 1: a stop may come at any moment; it cancels the walk and then proves the end (stop.py).
Rule 2: a start that shows no progress for `startup_timeout_s` fails with the step it was in.
Rule 3: an agent that ends leaves the engine alone; `let_go` only stops watching.
"""

import asyncio
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from llmgw_agent.engines.adapter import EngineAdapter, LaunchFacts
from llmgw_agent.engines.installs import Installs
from llmgw_agent.engines.registry import adapter_for
from llmgw_agent.inventory.facts import boot_id
from llmgw_agent.settings import AllowBlock
from llmgw_agent.supervisor import exits, ports, processes, readiness
from llmgw_agent.supervisor.launch import environment, launch
from llmgw_agent.supervisor.record import Records, ShardRecord
from llmgw_agent.supervisor.shard import ShardStatus, failed, fetched, moved
from llmgw_agent.supervisor.stop import end_processes
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.clock import Clock
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.facts import ShardError
from llmgw_common.states import ShardState

log = structlog.get_logger(__name__)

#: Progress is reported at most this often (design: control channel, events).
_PROGRESS_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every shard's walk uses of this machine.

    Attributes:
        host: address that engines bind and that gateways reach.
        agent: this agent's mark.
        taken_ports: ports of the other shards.
    """

    installs: Installs
    weights: WeightsStore
    records: Records
    allow: AllowBlock
    clock: Clock
    host: str
    band: tuple[int, int]
    logs: Path
    keys: Path
    agent: str
    taken_ports: Callable[[], set[int]]


class _EndedError(Exception):
    """The engine's process ended by itself."""


class ShardTask:
    """Owns one shard's walk and its end."""

    def __init__(
        self, status: ShardStatus, around: Surroundings, on_change: Callable[[ShardStatus], None]
    ) -> None:
        self.status = status
        self._around = around
        self._on_change = on_change
        self._walk: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._process_started = 0
        self._limit: asyncio.Timeout | None = None
        self._told_at_s = 0.0
        self._step = "install"

    @property
    def log_file(self) -> Path:
        """The engine's log of this epoch."""
        command = self.status.command
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in command.shard_id)
        return self._around.logs / safe / f"{command.epoch}.log"

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the walk."""
        self._walk = asyncio.create_task(
            self._guarded(self._start()), name=f"shard {self.status.command.shard_id}"
        )

    def adopt(self, record: ShardRecord, pid: int, process_started: int) -> None:
        """Go on with an engine that runs already; its readiness is looked at again."""
        self._process_started = process_started
        self.status = replace(self.status, pid=pid, is_adopted=True)
        was_ready = record.ready_unix_s is not None
        self._walk = asyncio.create_task(
            self._guarded(self._watch() if was_ready else self._await_ready()),
            name=f"shard {self.status.command.shard_id}",
        )

    def stop(self, grace_s: float, why: str) -> None:
        """Begin to end it, once; the end is reported."""
        if self._ending is None and self.status.state is not ShardState.STOPPED:
            self._ending = asyncio.create_task(
                self._stop(grace_s, why), name=f"stop {self.status.command.shard_id}"
            )

    async def stopped(self) -> None:
        """Wait for the end that `stop` began."""
        if self._ending:
            await self._ending

    async def let_go(self) -> None:
        """Stop watching; a running engine goes on."""
        for task in (self._walk, self._ending):
            if task and not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    # --- the walk --------------------------------------------------------------------------------

    async def _guarded(self, walk: Coroutine[Any, Any, None]) -> None:
        command = self.status.command
        try:
            await walk
        except TimeoutError:
            text = f"no progress for {command.startup_timeout_s:.0f} s in step {self._step}"
            await self._fail(
                ShardError(
                    step=self._step, kind="timeout", text=text, log_tail=exits.tail(self.log_file)
                )
            )
        except _EndedError:
            adapter = adapter_for(command.engine.kind, self._around.allow.engine_kinds)
            code = self._process.poll() if self._process else None
            error = exits.explain_exit(code, self._step, self.log_file, adapter.error_patterns)
            await self._fail(error)
        except LlmgwError as error:
            await self._fail(
                ShardError(
                    step=self._step,
                    kind=error.code,
                    text=error.message,
                    log_tail=exits.tail(self.log_file),
                )
            )
        except Exception as error:
            log.exception("shard walk failed", shard_id=command.shard_id)
            await self._fail(ShardError(step=self._step, text=f"fault of the agent: {error!r}"))

    async def _start(self) -> None:
        command = self.status.command
        async with asyncio.timeout(command.startup_timeout_s) as self._limit:
            adapter = adapter_for(command.engine.kind, self._around.allow.engine_kinds)
            self._move(ShardState.INSTALLING)
            program = await self._around.installs.ensure(command.engine, self._tell)
            self._step = "fetch"
            self._move(ShardState.FETCHING)
            weights = await self._around.weights.ensure(command.source, self._fetched, self._tell)
            self._around.weights.use(command.source, command.shard_id)
            self._step = "launch"
            self._move(ShardState.STARTING, "launching the engine")
            await self._launch(adapter, program, weights)
        await self._await_ready()

    async def _launch(
        self, adapter: EngineAdapter, program: Path | None, weights: Path | None
    ) -> None:
        command, around = self.status.command, self._around
        port = await asyncio.to_thread(
            ports.choose,
            around.host,
            command.port,
            around.band,
            around.taken_ports(),
            command.shard_id,
        )
        if port is None:
            low, high = around.band
            raise LlmgwError("unavailable", f"no port from {low} to {high} is free")
        self.status = replace(self.status, host=around.host, port=port)
        plan = adapter.command_line(
            LaunchFacts(
                program=program,
                weights=weights,
                served_model=command.served_model,
                host=around.host,
                port=port,
                key_file=await asyncio.to_thread(self._write_key),
                gpu_indices=command.gpu_indices,
                args={**command.engine.args, **command.args},
            )
        )
        values = environment(command, plan, around.allow.env_names, around.agent)
        await asyncio.to_thread(self._record)
        started = await asyncio.to_thread(launch, plan.argv, values, self.log_file)
        self._process, self._process_started = started.process, started.process_started
        self.status = replace(self.status, pid=started.pid)
        await asyncio.to_thread(self._record)
        log.info("engine launched", shard_id=command.shard_id, pid=started.pid, port=port)
        self._tell("waiting for the engine's port")

    def _write_key(self) -> Path:
        path = self._around.keys / f"{self.log_file.parent.name}.key"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.write_text(self.status.access_key.get_secret_value() + "\n", encoding="utf-8")
        return path

    def _record(self) -> None:
        status, clock = self.status, self._around.clock
        now_unix_s, now_s = clock.now().timestamp(), clock.monotonic_s()
        ready_at_s = status.ready_at_s
        self._around.records.write(
            ShardRecord(
                command=status.command,
                access_key=status.access_key,
                host=status.host,
                port=status.port,
                boot_id=boot_id(),
                pid=status.pid,
                process_started=self._process_started or None,
                created_unix_s=now_unix_s - (now_s - status.created_at_s),
                ready_unix_s=None if ready_at_s is None else now_unix_s - (now_s - ready_at_s),
            )
        )

    async def _await_ready(self) -> None:
        status, command = self.status, self.status.command
        self._step = "await_ready"
        async with asyncio.timeout(command.startup_timeout_s) as self._limit:
            await self._unless_ended(readiness.wait_listening(command.shard_id, status.port))
            self._move(ShardState.LOADING, "loading the model")
            adapter = adapter_for(command.engine.kind, self._around.allow.engine_kinds)
            serving = readiness.wait_serving(
                f"http://{status.host}:{status.port}",
                status.access_key.get_secret_value(),
                health_path=adapter.health_path,
                kind=command.model_kind,
                served=command.served_model,
                tell=self._tell,
            )
            await self._unless_ended(serving)
        self._limit = None
        self._move(ShardState.READY)
        await asyncio.to_thread(self._record)
        log.info("engine ready", shard_id=command.shard_id, model=command.model)
        await self._watch()

    async def _watch(self) -> None:
        self._step = "watch"
        await self._gone()
        raise _EndedError

    async def _unless_ended(self, step: Coroutine[Any, Any, None]) -> None:
        """Await the step, or raise as soon as the process ends."""
        doing = asyncio.create_task(step)
        gone = asyncio.create_task(self._gone())
        try:
            await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise _EndedError
            doing.result()
        finally:
            for task in (doing, gone):
                task.cancel()
            await asyncio.gather(doing, gone, return_exceptions=True)

    async def _gone(self) -> None:
        if self.status.pid is not None:
            await processes.wait_gone(self.status.pid, self._process_started)
        if self._process:
            await asyncio.to_thread(self._process.wait)

    # --- ends ------------------------------------------------------------------------------------

    async def _fail(self, error: ShardError) -> None:
        """End what is left of it, then report; a failed shard holds nothing."""
        command = self.status.command
        outcome = await end_processes(
            command.shard_id,
            grace_s=2.0,
            host=self.status.host,
            port=self.status.port,
            clock=self._around.clock,
        )
        if outcome.left:
            error = error.model_copy(
                update={"step": "stop", "text": f"{error.text}; could not end {outcome.left}"}
            )
        else:
            await asyncio.to_thread(self._clear)
        self._set(failed(self.status, error, self._around.clock.monotonic_s()))
        log.warning("shard failed", shard_id=command.shard_id, step=error.step, error=error.text)

    async def _stop(self, grace_s: float, why: str) -> None:
        command, clock = self.status.command, self._around.clock
        if self._walk and not self._walk.done():
            self._walk.cancel()
            with suppress(asyncio.CancelledError):
                await self._walk
        if not self.status.is_over:
            self._move(ShardState.STOPPING, why)
        outcome = await end_processes(
            command.shard_id,
            grace_s=grace_s,
            host=self.status.host,
            port=self.status.port,
            clock=clock,
        )
        if self._process:
            self._process.poll()
        if outcome.is_proven:
            await asyncio.to_thread(self._clear)
            self._move(ShardState.STOPPED, f"ended by {outcome.needed}")
            self.status = replace(self.status, pid=None)
        else:
            text = f"stop failed: pids {list(outcome.left)} are left"
            if not outcome.is_port_free:
                text += f", port {self.status.port} is still taken"
            error = ShardError(step="stop", kind="stop_failed", text=text)
            self._set(failed(self.status, error, clock.monotonic_s()))
            self._ending = None  # another stop command tries again
        log.info("shard ended", shard_id=command.shard_id, needed=outcome.needed)

    def _clear(self) -> None:
        command = self.status.command
        self._around.weights.release(command.source, command.shard_id)
        self._around.records.remove(command.shard_id)
        (self._around.keys / f"{self.log_file.parent.name}.key").unlink(missing_ok=True)

    # --- status ----------------------------------------------------------------------------------

    def _set(self, status: ShardStatus) -> None:
        self.status = status
        self._on_change(status)

    def _move(self, state: ShardState, text: str = "") -> None:
        self._set(moved(self.status, state, self._around.clock.monotonic_s(), text))
        self._progressed()

    def _tell(self, text: str) -> None:
        self.status = replace(self.status, step_text=text)
        self._progressed()
        self._tell_sometimes()

    def _fetched(self, done: int, total: int) -> None:
        before = self.status.fetch
        self.status = fetched(self.status, done, total)
        if self.status.fetch != before:
            self._progressed()
            self._tell_sometimes()

    def _tell_sometimes(self) -> None:
        now_s = self._around.clock.monotonic_s()
        if now_s - self._told_at_s >= _PROGRESS_EVERY_S:
            self._told_at_s = now_s
            self._on_change(self.status)

    def _progressed(self) -> None:
        """Visible progress moves the start deadline on."""
        if self._limit is not None and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            with suppress(RuntimeError):
                self._limit.reschedule(now + self.status.command.startup_timeout_s)
