"""The store: files in place, one fetch for all who wait, nothing deleted under a user."""

import asyncio
import fcntl
import hashlib
import json
import os

import pytest

from llmgw_common.errors import LlmgwError
from tests.lying_index import MEMBER, SOURCE, LyingIndex, nothing, store_over

# --- files in place ----------------------------------------------------------------------------


async def test_a_file_source_is_used_in_place_if_its_folder_is_allowed(tmp_path):
    (tmp_path / "w.gguf").write_bytes(b"x")
    (tmp_path / "link.gguf").symlink_to("/etc/hostname")
    async with store_over(tmp_path, LyingIndex()) as store:
        assert await store.ensure(f"file://{tmp_path}/w.gguf", nothing) == tmp_path / "w.gguf"
        assert await store.ensure("none:", nothing) is None
        for path in ("/etc/passwd", f"{tmp_path}/link.gguf"):
            with pytest.raises(LlmgwError) as caught:
                await store.ensure(f"file://{path}", nothing)
            assert caught.value.code == "refused_by_node"
        with pytest.raises(LlmgwError, match="does not exist"):
            await store.ensure(f"file://{tmp_path}/none.gguf", nothing)


def hashed(path):
    return f"file://{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


async def test_a_files_hash_is_verified_once_and_again_when_it_was_touched(tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(MEMBER)
    source = hashed(path)
    async with store_over(tmp_path, LyingIndex()) as store:
        seen: list[tuple[int, int]] = []
        assert await store.ensure(source, lambda *p: seen.append(p)) == path
        assert seen[-1] == (len(MEMBER), len(MEMBER))
    async with store_over(tmp_path, LyingIndex()) as store:  # the agent started again
        seen.clear()
        assert await store.ensure(source, lambda *p: seen.append(p)) == path
        assert seen == []
        path.write_bytes(b"!" + MEMBER[1:])
        with pytest.raises(LlmgwError, match="the source says") as caught:
            await store.ensure(source, nothing)
        assert caught.value.code == "weights_unreadable"


async def test_a_file_replaced_by_another_of_the_same_size_and_time_is_seen_by_its_inode(tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(b"good")
    source, times = hashed(path), path.stat()
    async with store_over(tmp_path, LyingIndex()) as store:
        await store.ensure(source, nothing)
        other = tmp_path / "other"
        other.write_bytes(b"evil")
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.rename(path)
        with pytest.raises(LlmgwError, match="another or a broken file"):
            await store.ensure(source, nothing)


async def test_a_folder_has_no_hash(tmp_path):
    (tmp_path / "d").mkdir()
    async with store_over(tmp_path, LyingIndex()) as store:
        with pytest.raises(LlmgwError, match="name a file in it"):
            await store.ensure(f"file://{tmp_path}/d#sha256={'0' * 64}", nothing)


async def test_a_source_that_cannot_be_fetched_yet_is_refused_in_words(tmp_path):
    async with store_over(tmp_path, LyingIndex()) as store:
        with pytest.raises(LlmgwError, match=r"file: and pypi: sources only"):
            await store.ensure("hf://org/name@main", nothing)


# --- many waiters ------------------------------------------------------------------------------


async def test_two_that_wait_with_the_same_listener_are_two(tmp_path):
    index = LyingIndex()
    async with store_over(tmp_path, index) as store:
        first = asyncio.create_task(store.ensure(SOURCE, nothing))
        second = asyncio.create_task(store.ensure(SOURCE, nothing))
        await asyncio.sleep(0)
        first.cancel()
        path = await second
        assert path is not None
        assert path.read_bytes() == MEMBER
        assert first.cancelled()
    assert len(index.ranges) == 1


async def test_who_comes_while_a_cancelled_fetch_ends_gets_the_weights_and_no_cancel(tmp_path):
    async with store_over(tmp_path, LyingIndex(gap_s=0.005)) as store:
        for _ in range(3):
            only = asyncio.create_task(store.ensure(SOURCE, nothing))
            while not list(tmp_path.rglob("*.partial")):
                await asyncio.sleep(0)
            only.cancel()
            await asyncio.sleep(0)  # the fetch is told, but has not ended
            path = await store.ensure(SOURCE, nothing)
            assert path is not None
            assert path.read_bytes() == MEMBER
            await store.delete(SOURCE)


async def test_a_waiter_of_a_store_that_closes_is_told_so(tmp_path):
    index = LyingIndex(answers={0: -10})
    async with store_over(tmp_path, index) as store:
        doing = asyncio.create_task(store.ensure(SOURCE, nothing))
        while not index.ranges:
            await asyncio.sleep(0.001)
        await store.close()
        with pytest.raises(LlmgwError) as caught:
            await doing
        assert caught.value.code == "unavailable"


async def test_a_fetch_that_failed_for_all_is_tried_anew_by_the_next(tmp_path):
    index = LyingIndex(page_answers={0: b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"})
    async with store_over(tmp_path, index) as store:
        both = await asyncio.gather(
            *(store.ensure(SOURCE, nothing) for _ in range(2)), return_exceptions=True
        )
        assert all(isinstance(error, LlmgwError) for error in both)
        assert index.pages == 1
        assert await store.ensure(SOURCE, nothing) is not None


# --- what is on disk ---------------------------------------------------------------------------


async def test_a_file_that_changed_on_disk_is_fetched_again(tmp_path):
    index = LyingIndex()
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        path.write_bytes(b"rot")
        assert store.present() == ()
        assert await store.ensure(SOURCE, nothing) == path
        assert path.read_bytes() == MEMBER
    assert len(index.ranges) == 2


async def test_a_stored_file_is_known_by_its_inode_too(tmp_path):
    index = LyingIndex()
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        times = path.stat()
        other = tmp_path / "other"
        other.write_bytes(b"!" + MEMBER[1:])
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.rename(path)
        assert await store.ensure(SOURCE, nothing) == path
        assert path.read_bytes() == MEMBER
    assert len(index.ranges) == 2


async def test_a_file_that_was_only_copied_is_hashed_once_and_kept(tmp_path):
    index = LyingIndex()
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        os.utime(path, ns=(1, 1))
        assert await store.ensure(SOURCE, nothing) == path
        known = json.loads((path.parent / "source.json").read_text())
        assert known["mtime_ns"] == 1
    assert len(index.ranges) == 1


async def test_what_a_shard_uses_is_not_deleted(tmp_path):
    async with store_over(tmp_path, LyingIndex()) as store:
        await store.ensure(SOURCE, nothing)
        store.use(SOURCE, "shd-1")
        with pytest.raises(LlmgwError, match="shd-1"):
            await store.delete(SOURCE)
        store.release(SOURCE, "shd-1")
        await store.delete(SOURCE)
        assert store.present() == ()
        await store.delete(SOURCE)


async def test_what_is_being_fetched_is_not_deleted(tmp_path):
    index = LyingIndex(gap_s=0.002)
    async with store_over(tmp_path, index) as store:
        doing = asyncio.create_task(store.ensure(SOURCE, nothing))
        while not index.ranges:
            await asyncio.sleep(0.001)
        with pytest.raises(LlmgwError, match="a fetch under way"):
            await store.delete(SOURCE)
        assert await doing is not None


async def test_the_owners_own_files_are_never_deleted(tmp_path):
    path = tmp_path / "w.gguf"
    path.write_bytes(b"x")
    async with store_over(tmp_path, LyingIndex()) as store:
        with pytest.raises(LlmgwError, match="by hand"):
            await store.delete(f"file://{path}")
    assert path.exists()


async def test_a_home_in_which_another_process_works_is_waited_for(tmp_path):
    index = LyingIndex()
    told: list[str] = []
    async with store_over(tmp_path, index) as store:
        lock = os.open(store._lock_of(store._home(SOURCE)), os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        doing = asyncio.create_task(store.ensure(SOURCE, nothing, told.append))
        while not told:
            await asyncio.sleep(0.001)
        assert "another process" in told[0]
        assert index.pages == 0
        with pytest.raises(LlmgwError):
            await store.delete(SOURCE)
        os.close(lock)
        assert await doing is not None
