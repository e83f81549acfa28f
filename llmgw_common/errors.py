"""One family of errors for all of llmgw, with one table of codes.

Rule 1: raise with what was expected, what was found and what to do; never pass a library's text
on unread.
Rule 2: a code is for programs and stays; a message is for people and may change.
Rule 3: no secret, key or prompt in a message or a fact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """A row of the table: HTTP status, short title, and whether the same call may work later."""

    status: int
    title: str
    is_retryable: bool = False


ERROR_KINDS: Final[Mapping[str, ErrorKind]] = {
    "bad_request": ErrorKind(400, "The request cannot be understood"),
    "invalid_catalog": ErrorKind(422, "The catalog has errors; nothing was applied"),
    "invalid_config": ErrorKind(422, "The configuration has errors"),
    "unauthenticated": ErrorKind(401, "A valid key is needed"),
    "forbidden": ErrorKind(403, "The key may not do this"),
    "not_found": ErrorKind(404, "There is no such thing"),
    "conflict": ErrorKind(409, "The state does not allow this"),
    "revision_changed": ErrorKind(412, "Somebody else changed it meanwhile"),
    "too_large": ErrorKind(413, "The request is too large"),
    "unprocessable": ErrorKind(422, "The request has errors"),
    "node_unreachable": ErrorKind(503, "The node is not connected", is_retryable=True),
    "timed_out": ErrorKind(504, "It took too long", is_retryable=True),
    "unavailable": ErrorKind(503, "Not available now", is_retryable=True),
    "internal": ErrorKind(500, "A fault of llmgw"),
    "engine_install_failed": ErrorKind(500, "The engine could not be installed", is_retryable=True),
    "weights_unreadable": ErrorKind(
        500, "The weights could not be fetched or read", is_retryable=True
    ),
    "disk_full": ErrorKind(507, "The disk is too full", is_retryable=True),
    "refused_by_node": ErrorKind(403, "The node's own rules forbid this"),
}


class LlmgwError(Exception):
    """An error with a code of `ERROR_KINDS`, a message for people and facts for programs."""

    def __init__(self, code: str, message: str, **facts: str | int | float | None) -> None:
        super().__init__(message)
        if code not in ERROR_KINDS:
            raise KeyError(f"error code {code!r} is not in ERROR_KINDS")
        self.code = code
        self.message = message
        self.facts = facts

    @property
    def kind(self) -> ErrorKind:
        """The table row of this error's code."""
        return ERROR_KINDS[self.code]

    def __str__(self) -> str:
        return self.message
