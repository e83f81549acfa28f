"""How long a fetch keeps trying, and the one loop that does it.

Rule 1: a failure that moved bytes starts the count anew: a long download may be cut many times.
Rule 2: bytes that were thrown away are no progress; `spoiled_max` of them and it is over.
Rule 3: a source's own wish to wait (Retry-After) counts, up to the longest pause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx
import structlog

from llmgw_common.errors import LlmgwError
from llmgw_common.mint import jitter
from llmgw_common.redact import redact

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Limits of a fetch, in seconds and counts.

    Attributes:
        tries: attempts in a row that moved nothing, before it is given up.
        spoiled_max: wholly fetched files with a wrong size or hash, before it is given up.
        backoff_first_s: first pause; it doubles with every attempt, up to `backoff_max_s`.
        connect_s: limit to make a connection.
        stall_s: a connection that moves no byte for this long has stalled.
        disk_poll_s: a full disk is looked at again this often.
        disk_polls: after so many looks the fetch fails (360 x 10 s is one hour).
    """

    tries: int = 6
    spoiled_max: int = 3
    backoff_first_s: float = 1.0
    backoff_max_s: float = 30.0
    connect_s: float = 10.0
    stall_s: float = 30.0
    disk_poll_s: float = 10.0
    disk_polls: int = 360


class AgainError(Exception):
    """Worth another try; the text says what happened."""

    def __init__(self, text: str, *, is_spoiled: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.has_progressed = False
        self.is_spoiled = is_spoiled
        self.pause_s = pause_s


async def patiently(url: str, patience: Patience, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what `attempt` returns, tried again after an `AgainError`.

    Raises:
        LlmgwError: `weights_unreadable` with the last failure; whatever else `attempt` raises.
    """
    failures = spoiled = 0
    while True:
        try:
            return await attempt()
        except AgainError as error:
            failures = 1 if error.has_progressed else failures + 1
            spoiled += error.is_spoiled
            where, last = redact(url), redact(str(error))
            log.warning("fetch interrupted", url=where, failures=failures, error=last)
            if failures >= patience.tries or spoiled >= patience.spoiled_max:
                count = spoiled if spoiled >= patience.spoiled_max else failures
                text = f"{where}: gave up after {count} tries: {last}"
                raise LlmgwError("weights_unreadable", text) from error
            pause_s = patience.backoff_first_s * 2 ** (failures - 1) * jitter(0.5, 1.0)
            await asyncio.sleep(min(max(pause_s, error.pause_s), patience.backoff_max_s))


_FINAL: Final = {
    401: "the source wants credentials (401)",
    403: "the source refuses access, perhaps the model is gated (403)",
    404: "the source has no such file (404)",
    410: "the file is gone from the source (410)",
}


def judge_status(answer: httpx.Response) -> None:
    """Let a success pass.

    Raises:
        LlmgwError: `weights_unreadable`: the same call will never work.
        AgainError: it may work later.
    """
    status = answer.status_code
    if answer.is_success:
        return
    if status in _FINAL:
        where = redact(str(answer.request.url))
        raise LlmgwError("weights_unreadable", f"{where}: {_FINAL[status]}")
    wish = answer.headers.get("retry-after", "")
    pause_s = float(wish) if wish.isascii() and wish.isdigit() else 0.0
    raise AgainError(f"the source answered {status}", pause_s=pause_s)


def explain_request_error(error: httpx.RequestError | httpx.InvalidURL) -> Exception:
    """Return what to raise instead: `AgainError` for a broken transport, else a final error."""
    text = redact(str(error)) or type(error).__name__
    if isinstance(error, httpx.ReadTimeout):
        return AgainError("the connection stalled")
    if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol):
        return AgainError(text)
    return LlmgwError("weights_unreadable", f"the address cannot be fetched: {text}")
