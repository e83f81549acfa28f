"""What is known of one stored file: its source, size, hash, and how to see that nobody touched it.

Layout of a home: {source.json, <file>}. `source.json` is written last; a home without it is a
fetch that has not ended. All calls block.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from llmgw_agent.weights.blocking import Stop, sha256_of, telling_full_disk

_NAME: Final = "source.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """How the system sees a file; a change of any of these asks for its hash again."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """Return the stamp of a file; raises OSError if there is none."""
        found = path.stat()
        return cls(size=found.st_size, mtime_ns=found.st_mtime_ns, inode=found.st_ino)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `source.json`."""

    source: str
    file: str
    sha256: str
    size: int
    mtime_ns: int
    inode: int

    @property
    def stamp(self) -> Stamp:
        """The file as it was when its hash was verified."""
        return Stamp(size=self.size, mtime_ns=self.mtime_ns, inode=self.inode)


def read_manifest(home: Path) -> Manifest | None:
    """Return what `home` says it holds, None if it says nothing that can be read."""
    try:
        return Manifest(**json.loads((home / _NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_manifest(home: Path, source: str, file: str, sha256: str) -> None:
    """Say durably that `home` holds `file`, verified.

    Raises:
        LlmgwError: `disk_full`.
    """
    stamp = Stamp.of(home / file)
    manifest = Manifest(source=source, file=file, sha256=sha256, **asdict(stamp))
    write_durably(home / _NAME, json.dumps(asdict(manifest)))


def forget_manifest(home: Path) -> None:
    """Take back what `home` says."""
    (home / _NAME).unlink(missing_ok=True)


def write_durably(path: Path, text: str) -> None:
    """Replace a small file so that it is whole, old or new, after a power cut.

    Raises:
        LlmgwError: `disk_full`.
    """
    temporary = path.with_name(path.name + ".new")
    with telling_full_disk(path.parent, len(text)):
        with temporary.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def is_whole(home: Path, file: str, stop: Stop) -> bool:
    """Say whether `file` is the verified one: by its stamp, by its hash if that has moved.

    A file that has changed is thrown away.
    """
    known = read_manifest(home)
    if known is None or known.file != file:
        return False
    try:
        if Stamp.of(home / file) == known.stamp:
            return True
        if sha256_of(home / file, stop) == known.sha256:
            write_manifest(home, known.source, file, known.sha256)
            return True
    except FileNotFoundError:
        pass
    forget_manifest(home)
    (home / file).unlink(missing_ok=True)
    return False


def stored(folder: Path) -> Iterator[Manifest]:
    """Yield what the homes under `folder` hold whole, judged without reading files."""
    for path in sorted(folder.glob(f"*/{_NAME}")):
        known = read_manifest(path.parent)
        try:
            if known and (path.parent / known.file).stat().st_size == known.size:
                yield known
        except OSError:
            continue
