"""Everything that happens is an event: kept in the store, and streamed to who follows.

Rule 1: `emit` never waits: what cannot be written in time is counted, not waited for.
Rule 2: ids rise and are never given twice, not even after a crash (they are reserved ahead in the
store), so `since` is a resume point.
Rule 3: a follower that does not read gets what it has in its queue, and is then cut off; it resumes
by its last id and has missed nothing.
Rule 4: one write at a time, never cancelled half way.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import structlog

from llmgw_common.clock import Clock
from llmgw_common.redact import redact

log = structlog.get_logger(__name__)

FLUSH_S: Final = 0.5
#: Events kept in memory for followers that resume.
RECENT: Final = 2000
#: Events that may wait to be written.
PENDING_MAX: Final = 10_000
FOLLOWER_QUEUE: Final = 1000
#: Ids reserved ahead; so many at most are skipped by a crash.
RESERVED_AHEAD: Final = 1000

Fact = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to an object; `actor` is a key's name, or `llmgw` itself."""

    id: int
    at: datetime
    object_kind: str
    object_id: str
    code: str
    text: str
    actor: str = "llmgw"
    trace_id: str = ""
    facts: dict[str, Fact] = field(default_factory=dict)


class EventStore(Protocol):
    """Where events are kept."""

    async def write(self, events: Sequence[Event]) -> None:
        """Add events."""
        ...

    async def read(self, since: int | None, limit: int) -> list[Event]:
        """Return events after id `since`, oldest first; the newest ones if it is None."""
        ...

    async def last_id(self) -> int:
        """Return the highest id that was stored or reserved, 0 if there is none."""
        ...

    async def reserve(self, up_to: int) -> None:
        """Note durably that ids up to this one may be in use."""
        ...

    async def forget_before(self, at: datetime) -> None:
        """Delete older ones."""
        ...


class EventBus:
    """Takes events, numbers them, writes them, and hands them to followers."""

    def __init__(self, store: EventStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._last_id = 0
        self._reserved = 0
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._pending: deque[Event] = deque()
        self._followers: set[asyncio.Queue[Event | None]] = set()
        self._writer: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._writing = asyncio.Lock()
        self.lost = 0

    async def start(self) -> None:
        """Go on after the last id that may have been given, and begin to write."""
        self._last_id = self._reserved = await self._store.last_id()
        await self._reserve_ahead()
        self._writer = asyncio.create_task(self._write_on(), name="events-writer")

    def end_followers(self) -> None:
        """End every follower's stream: the server is going down."""
        for queue in self._followers:
            queue.put_nowait(None)
        self._followers.clear()

    async def stop(self) -> None:
        """Write what is there; events that come later are not kept."""
        self.end_followers()
        self._ending.set()
        if self._writer:
            await self._writer
        await self._flush()
        await self._store.reserve(self._last_id)

    def emit(
        self,
        object_kind: str,
        object_id: str,
        code: str,
        text: str,
        *,
        actor: str = "llmgw",
        facts: Sequence[tuple[str, Fact]] = (),
    ) -> Event:  # fmt: skip
        """Record something that happened; secrets are masked."""
        self._last_id += 1
        event = Event(
            id=self._last_id,
            at=self._clock.now(),
            object_kind=object_kind,
            object_id=object_id,
            code=code,
            text=redact(text),
            actor=actor,
            facts={name: redact(v) if isinstance(v, str) else v for name, v in facts},
        )
        self._recent.append(event)
        if len(self._pending) < PENDING_MAX:
            self._pending.append(event)
        else:
            self.lost += 1
        for queue in tuple(self._followers):
            if queue.qsize() < FOLLOWER_QUEUE:
                queue.put_nowait(event)
            else:
                self._followers.discard(queue)
                queue.put_nowait(None)
        log.info("event", code=code, object=object_kind, id=object_id, text=event.text)
        return event

    async def read(self, since: int | None, limit: int) -> list[Event]:
        """Return events after `since`, oldest first; the newest if it is None."""
        await self._flush()
        return await self._store.read(since, limit)

    async def follow(self, since: int | None) -> AsyncIterator[Event]:
        """Yield events after `since` (None: from now on), then new ones as they happen.

        Ends if the follower is too slow; it resumes by the last id that it saw.
        """
        # Bounded by FOLLOWER_QUEUE in emit, and one more for the mark of its end.
        queue: asyncio.Queue[Event | None] = asyncio.Queue(FOLLOWER_QUEUE + 1)
        self._followers.add(queue)
        try:
            last = self._last_id if since is None else since
            while batch := await self._after(last):
                for event in batch:
                    last = event.id
                    yield event
            while (next_event := await queue.get()) is not None:
                if next_event.id > last:
                    yield next_event
        finally:
            self._followers.discard(queue)

    async def _after(self, last: int) -> list[Event]:
        """Return events after an id: from the store, or what could not be written yet."""
        if last >= self._last_id:
            return []
        stored = await self.read(last, RECENT)
        return stored or [event for event in self._recent if event.id > last]

    async def forget_before(self, at: datetime) -> None:
        """Delete stored events older than `at`."""
        await self._store.forget_before(at)

    async def _write_on(self) -> None:
        while not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._ending.wait()
            await self._flush()

    async def _reserve_ahead(self) -> None:
        if self._reserved - self._last_id < RESERVED_AHEAD // 2:
            up_to = self._last_id + RESERVED_AHEAD
            await self._store.reserve(up_to)
            self._reserved = up_to

    async def _flush(self) -> None:
        async with self._writing:
            batch = list(self._pending)
            self._pending.clear()
            if not batch:
                return
            try:
                await self._store.write(batch)
                await self._reserve_ahead()
            except Exception as error:  # noqa: BLE001 - any store's failure: keep them, try again
                log.warning("events not written; kept", events=len(batch), error=repr(error))
                self._pending.extendleft(reversed(batch))
