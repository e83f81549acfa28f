"""Disk work in threads: a cancel ends it and waits for its end."""

import asyncio
import threading

import pytest

from llmgw_agent.weights.blocking import StoppedError, in_thread, sha256_of


async def test_work_gives_its_result_or_its_error():
    assert await in_thread(lambda _: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda _: 1 // 0)


async def test_a_cancel_comes_back_only_when_the_thread_has_ended():
    begun, ended = threading.Event(), threading.Event()

    def work(stop):
        begun.set()
        try:
            while True:
                stop.check()
        except StoppedError:
            ended.set()
            raise

    doing = asyncio.create_task(in_thread(work))
    while not begun.is_set():
        await asyncio.sleep(0)
    doing.cancel()
    doing.cancel()  # twice, as an impatient caller does
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert ended.is_set()


async def test_a_hash_ends_at_the_block_at_which_nobody_waits_any_more(tmp_path):
    path = tmp_path / "endless"
    with path.open("wb") as out:
        out.truncate(1 << 36)  # 64 GiB of nothing: hashing it whole takes minutes
    begun = threading.Event()
    doing = asyncio.create_task(
        in_thread(lambda stop: sha256_of(path, stop, lambda _: begun.set()))
    )
    while not begun.is_set():
        await asyncio.sleep(0)
    doing.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await doing
