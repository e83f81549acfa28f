"""One task per content, however many wait for it.

Rule 1: a waiter that gives up does not stop a fetch that others wait for; the last one does.
Rule 2: who comes while a cancelled fetch still ends waits for that end and begins anew.
Rule 3: a fetch counts as under way until its last waiter has seen the result, so nothing is
deleted between a fetch's end and the moment when a shard says that it uses it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw_common.errors import LlmgwError

OnProgress = Callable[[int, int], None]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """Somebody who waits, known by identity: two may well pass the same functions."""

    on_progress: OnProgress
    tell: Tell


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch under way; bytes never go back, nor above their total."""

    waiters: list[Waiter] = field(default_factory=list)
    done_bytes: int = 0
    total_bytes: int = 0
    is_ending: bool = False

    def progress(self, done: int, total: int) -> None:
        """Tell all waiters how far it is."""
        self.total_bytes = max(self.total_bytes, total)
        self.done_bytes = max(self.done_bytes, min(done, total) if total else done)
        for waiter in tuple(self.waiters):
            waiter.on_progress(self.done_bytes, self.total_bytes)

    def tell(self, text: str) -> None:
        """Tell all waiters what is being done."""
        for waiter in tuple(self.waiters):
            waiter.tell(text)


Work = Callable[[Fetch], Coroutine[Any, Any, Path]]


class Fetches:
    """All fetches under way, by source."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Fetch, asyncio.Task[Path]]] = {}

    def __contains__(self, source: str) -> bool:
        return source in self._running

    async def join(self, source: str, waiter: Waiter, work: Work) -> Path:
        """Return the result of the fetch of `source`, begun by `work` if none is under way.

        Raises:
            LlmgwError: as `work`, or `unavailable`: the agent ends.
        """
        while (found := self._running.get(source)) and found[0].is_ending:
            await asyncio.wait({found[1]})
            self._forget(source, found[0])
        if found is None:
            begun = Fetch()
            found = begun, asyncio.create_task(work(begun), name=f"fetch {source}")
            self._running[source] = found
        fetch, task = found
        fetch.waiters.append(waiter)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.cancelled() and me is not None and not me.cancelling():
                raise LlmgwError("unavailable", f"the fetch of {source} was ended") from None
            raise
        finally:
            fetch.waiters.remove(waiter)
            self._left(source, fetch, task)

    async def close(self) -> None:
        """End all fetches and wait for their ends."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _left(self, source: str, fetch: Fetch, task: asyncio.Task[Path]) -> None:
        if fetch.waiters:
            return
        if task.done():
            self._forget(source, fetch)
        else:
            fetch.is_ending = True
            task.cancel()
            task.add_done_callback(lambda _: self._forget(source, fetch))

    def _forget(self, source: str, fetch: Fetch) -> None:
        running = self._running.get(source)
        if running and running[0] is fetch:
            del self._running[source]
