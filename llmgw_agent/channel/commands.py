"""What a command does on this machine: one function a command, each acked at once.

A refusal is an answer with a code and a text; it never ends the connection.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import structlog

from llmgw_agent.supervisor.exits import clean, tail
from llmgw_agent.supervisor.supervisor import Supervisor
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.errors import LlmgwError
from llmgw_common.protocol.messages import (
    Ack,
    Command,
    CommandResult,
    DeleteWeights,
    LogLines,
    Message,
    Prefetch,
    StartShard,
    StopShard,
    TailLogs,
)

log = structlog.get_logger(__name__)

_FOLLOW_POLL_S: Final = 0.25
_LINES_A_MESSAGE: Final = 200
_LINES_MAX: Final = 5000
#: Log readers and prefetches at once.
_BACKGROUND_MAX: Final = 32


class Commands:
    """Carries out commands; `send` takes what is to be told to the server."""

    def __init__(
        self, supervisor: Supervisor, weights: WeightsStore, send: Callable[[Message], None]
    ) -> None:
        self._supervisor = supervisor
        self._weights = weights
        self._send = send
        self._background: dict[str, asyncio.Task[None]] = {}

    def obey(self, command: Command, session: int) -> Ack:
        """Begin to carry out the command; return the ack to send."""
        code = text = ""
        try:
            self._dispatch(command)
        except LlmgwError as error:
            code, text = error.code, error.message
            log.warning("command refused", command=type(command).__name__, code=code, text=text)
        return Ack(
            id=f"ack-{command.id}",
            session=session,
            re=command.id,
            is_accepted=not code,
            code=code,
            text=text,
        )

    async def close(self) -> None:
        """End log readers and prefetches: the connection that asked for them is gone."""
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _dispatch(self, command: Command) -> None:
        match command:
            case StartShard():
                self._supervisor.start(command)
            case StopShard():
                self._supervisor.stop(command)
            case TailLogs():
                self._tail(command)
            case Prefetch():
                self._run(command, self._prefetch(command))
            case DeleteWeights():
                self._run(command, self._delete(command))
            case _:
                name = getattr(command, "type", "command")
                raise LlmgwError("refused_by_node", f"this agent version cannot {name} yet")

    def _run(self, command: Command, work: Coroutine[Any, Any, None]) -> None:
        if len(self._background) >= _BACKGROUND_MAX:
            work.close()
            raise LlmgwError("unavailable", f"{_BACKGROUND_MAX} requests run here already")
        task = asyncio.create_task(work, name=f"command {command.id}")
        self._background[command.id] = task
        task.add_done_callback(lambda _: self._background.pop(command.id, None))

    # --- logs ------------------------------------------------------------------------------------

    def _tail(self, command: TailLogs) -> None:
        if command.cancel:
            reader = self._background.get(command.cancel)
            if reader:
                reader.cancel()
            return
        path = self._supervisor.log_file(command.shard_id)
        self._run(command, self._send_log(command, path))

    async def _send_log(self, command: TailLogs, path: Path) -> None:
        lines = await asyncio.to_thread(tail, path, min(max(command.lines, 1), _LINES_MAX))
        for i in range(0, len(lines), _LINES_A_MESSAGE):
            self._tell(command, lines[i : i + _LINES_A_MESSAGE])
        if command.follow:
            await self._follow(command, path)
        self._tell(command, (), is_last=True)

    async def _follow(self, command: TailLogs, path: Path) -> None:
        with await asyncio.to_thread(path.open, "rb") as file:
            file.seek(0, 2)
            rest = b""
            while True:
                block = await asyncio.to_thread(file.read, 64 << 10)
                if not block:
                    await asyncio.sleep(_FOLLOW_POLL_S)
                    continue
                *whole, rest = (rest + block).split(b"\n")
                if whole:
                    self._tell(command, tuple(clean(x.decode(errors="replace")) for x in whole))

    def _tell(self, command: TailLogs, lines: tuple[str, ...], *, is_last: bool = False) -> None:
        self._send(LogLines(id=command.id, re=command.id, lines=lines, is_last=is_last))

    # --- weights ---------------------------------------------------------------------------------

    async def _prefetch(self, command: Prefetch) -> None:
        await self._result(command, self._weights.ensure(command.source, lambda *_: None))

    async def _delete(self, command: DeleteWeights) -> None:
        await self._result(command, self._weights.delete(command.source))

    async def _result(self, command: Command, work: Coroutine[Any, Any, object]) -> None:
        text = ""
        try:
            await work
        except LlmgwError as error:
            text = error.message
        self._send(CommandResult(id=command.id, re=command.id, is_ok=not text, text=text))
