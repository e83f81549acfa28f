"""The books: what was used, by minute, model, key, replica and outcome; written in batches.

Rule 1: nothing is lost on a clean stop; on a kill -9 at most one interval.
Rule 2: a write is never cancelled half-way by a stop, so no row is lost or counted twice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import structlog

log = structlog.get_logger(__name__)

FLUSH_S: Final = 10.0
#: A store that takes longer counts as failed; the rows are kept.
WRITE_S: Final = 10.0
#: Rows that may wait for a store that does not write; beyond, rows are merged coarser.
ROWS_MAX: Final = 10_000


class UsageKey(NamedTuple):
    """What rows are added up by; `minute` is UTC, seconds cut off."""

    minute: datetime
    model: str
    key_id: str
    replica_id: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Counts of one minute; `estimated` is how many requests had their tokens estimated."""

    key: UsageKey
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0


class UsageSink(Protocol):
    """Where rows are written."""

    async def write(self, rows: Sequence[UsageRow]) -> None:
        """Add the rows to what is there; all of them or none."""
        ...


class Accounts:
    """Adds up in memory and flushes to the sink."""

    def __init__(self, sink: UsageSink, now: Callable[[], datetime]) -> None:
        self._sink = sink
        self._now = now
        self._rows: dict[UsageKey, UsageRow] = {}
        self._is_ending = asyncio.Event()

    def book(
        self, *, model: str, key_id: str, replica_id: str, outcome: str, tokens: tuple[int, int],
        is_estimated: bool,
    ) -> None:  # fmt: skip
        """Book one request."""
        if len(self._rows) >= ROWS_MAX:
            key_id = replica_id = "(merged)"
        minute = self._now().replace(second=0, microsecond=0)
        key = UsageKey(minute, model, key_id, replica_id, outcome)
        row = self._rows.get(key) or UsageRow(key=key)
        self._rows[key] = replace(
            row,
            requests=row.requests + 1,
            prompt_tokens=row.prompt_tokens + tokens[0],
            completion_tokens=row.completion_tokens + tokens[1],
            estimated=row.estimated + is_estimated,
        )

    async def run(self) -> None:
        """Flush again and again, and once more after `end`."""
        while not self._is_ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._is_ending.wait()
            await self.flush()

    def end(self) -> None:
        """Let `run` write what is left and return."""
        self._is_ending.set()

    async def flush(self) -> None:
        """Write what there is; what cannot be written is kept for the next time."""
        rows, self._rows = self._rows, {}
        if not rows:
            return
        try:
            async with asyncio.timeout(WRITE_S):
                await self._sink.write(list(rows.values()))
        except Exception as error:  # noqa: BLE001 - any store's failure: keep the rows, try again
            log.warning("usage could not be written; it is kept", rows=len(rows), error=repr(error))
            for key, row in rows.items():
                newer = self._rows.get(key) or UsageRow(key=key)
                self._rows[key] = replace(
                    row,
                    requests=row.requests + newer.requests,
                    prompt_tokens=row.prompt_tokens + newer.prompt_tokens,
                    completion_tokens=row.completion_tokens + newer.completion_tokens,
                    estimated=row.estimated + newer.estimated,
                )
