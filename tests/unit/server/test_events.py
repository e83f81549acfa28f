"""Events: numbered for good, written in order, and never lost to a follower."""

import asyncio

import pytest

from llmgw_common.api_keys import mint_key
from llmgw_common.clock import FakeClock
from llmgw_server.events import FOLLOWER_QUEUE, RESERVED_AHEAD, EventBus


class MemoryStore:
    """An event store with a switch for its disk."""

    def __init__(self):
        self.events = []
        self.reserved = 0
        self.is_full = False
        self.reads = 0

    async def write(self, events):
        await asyncio.sleep(0)
        if self.is_full:
            raise OSError("disk full")
        self.events.extend(events)

    async def read(self, since, limit):
        self.reads += 1
        if since is None:
            return self.events[-limit:]
        return [e for e in self.events if e.id > since][:limit]

    async def last_id(self):
        return max([self.reserved, *(e.id for e in self.events)])

    async def reserve(self, up_to):
        self.reserved = up_to

    async def forget_before(self, at):
        self.events = [e for e in self.events if e.at >= at]


def emit(bus, text="happened"):
    return bus.emit("node", "n1", "test", text)


@pytest.fixture
def store():
    return MemoryStore()


async def started(store):
    bus = EventBus(store, FakeClock())
    await bus.start()
    return bus


async def test_no_id_is_given_twice_not_even_after_a_crash_that_lost_the_last_ones(store):
    bus = await started(store)
    lost = [emit(bus).id for _ in range(3)]
    bus._writer.cancel()  # the crash: nothing was written
    after = await started(store)
    assert emit(after).id > max(lost)
    await after.stop()


async def test_a_clean_stop_writes_everything_and_skips_no_id(store):
    bus = await started(store)
    ids = [emit(bus).id for _ in range(3)]
    await bus.stop()
    assert [e.id for e in store.events] == ids
    again = await started(store)
    assert emit(again).id == ids[-1] + 1
    await again.stop()


async def test_ids_are_reserved_ahead_of_their_use(store):
    bus = await started(store)
    for _ in range(RESERVED_AHEAD):
        emit(bus)
    await bus.read(None, 1)
    assert store.reserved > bus._last_id
    await bus.stop()


async def test_a_follower_gets_what_was_and_what_comes(store):
    bus = await started(store)
    first = emit(bus)
    seen = []

    async def follow():
        async for event in bus.follow(first.id - 1):
            seen.append(event.id)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.01)
    second = emit(bus)
    await asyncio.sleep(0.01)
    await bus.stop()
    await following
    assert seen == [first.id, second.id]


async def test_a_slow_follower_is_cut_off_without_a_gap(store):
    bus = await started(store)
    follower = bus.follow(None)
    reading = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    ids = [emit(bus).id for _ in range(FOLLOWER_QUEUE + 50)]
    seen = [(await reading).id, *[event.id async for event in follower]]
    assert seen == ids[: len(seen)]
    assert len(seen) >= FOLLOWER_QUEUE
    rest = [event.id for event in await bus.read(seen[-1], 1000)]
    assert seen + rest == ids
    await bus.stop()


async def test_a_full_disk_loses_no_event_and_makes_no_follower_spin(store):
    bus = await started(store)
    store.is_full = True
    event = emit(bus)
    follower = bus.follow(event.id - 1)
    assert (await anext(follower)).id == event.id
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.05)
    assert store.reads < 10
    store.is_full = False
    emit(bus)
    await waiting
    await follower.aclose()
    await bus.stop()
    assert [e.id for e in store.events] == [event.id, event.id + 1]


async def test_no_secret_reaches_an_event(store):
    bus = await started(store)
    key = mint_key()
    event = bus.emit("node", "n1", "test", f"it said {key}", facts=(("log_tail", f"x {key}"),))
    assert key not in str(event)
    await bus.stop()
