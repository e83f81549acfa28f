"""Event streams: what is read of them never touches what is relayed.

`UsageTail` looks at the end of an answer for its token counts. `UsageFilter` takes out the one
event that we asked for and the client did not; all other bytes pass as they came.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

#: The usage of an answer stands in its last bytes.
TAIL_BYTES: Final = 16 << 10
#: A single event larger than this passes unread rather than being held back.
EVENT_BYTES_MAX: Final = 1 << 20

#: Where a stream's first usage object stands, if it has one.
HEAD_BYTES: Final = 4 << 10
#: As much of a stream is looked at, at most, before its status is decided.
LOOK_BYTES_MAX: Final = 4 << 10

#: How the engine's own stream ended, as it is booked.
StreamEnd = Literal["ok", "failed", "no_end_marker"]
_END_MARKS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "/v1/chat/completions": (b"data: [DONE]", b"data:[DONE]"),
    "/v1/completions": (b"data: [DONE]", b"data:[DONE]"),
    "/v1/messages": (b'"message_stop"',),
}

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class UsageTail:
    """Keeps the first and last bytes of an answer, and counts its content events."""

    __slots__ = ("_head", "_tail", "events")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.events = 0

    def feed(self, chunk: bytes) -> None:
        """Take a chunk that was relayed."""
        self.events += chunk.count(b"data:")
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]
        if len(self._head) < HEAD_BYTES:
            self._head += chunk[: HEAD_BYTES - len(self._head)]

    def usage(self) -> Usage | None:
        """Return the last usage object, None if there is none.

        Anthropic's API tells the prompt's tokens in the first event and the answer's in the last
        but one: what the last object leaves out is taken from the first.
        """
        last = _last_usage(self._tail)
        if last is None or last.prompt_tokens:
            return last
        first = _last_usage(self._head)
        return Usage(first.prompt_tokens if first else 0, last.completion_tokens)

    @property
    def is_between_events(self) -> bool:
        """What was relayed ends with a whole event."""
        return not self._tail or self._tail.endswith((b"\n\n", b"\r\r", b"\n\r\n"))

    def ending(self, path: str) -> StreamEnd:
        """Say how a stream that the engine closed cleanly ended, by its API's own end marker."""
        if path == "/v1/responses":
            if b'"response.failed"' in self._tail:
                return "failed"
            marks: tuple[bytes, ...] = (b'"response.completed"', b'"response.incomplete"')
        else:
            marks = _END_MARKS.get(path, ())
        is_ended = not marks or any(mark in self._tail for mark in marks)
        return "ok" if is_ended else "no_end_marker"


def _last_usage(text: bytes) -> Usage | None:
    at = text.rfind(b'"usage"')
    while at >= 0:
        found = _object_at(text, text.find(b":", at) + 1)
        if found is not None:
            return _usage_from(found)
        at = text.rfind(b'"usage"', 0, at)
    return None


def _object_at(text: bytes, start: int) -> dict[str, Any] | None:
    """Return the JSON object that begins at `start`, None if none does."""
    depth = 0
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    if text[begin : begin + 1] != b"{":
        return None
    for at in range(begin, len(text)):
        depth += (text[at] == 0x7B) - (text[at] == 0x7D)
        if depth == 0:
            try:
                found = msgspec.json.decode(text[begin : at + 1])
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
            return found if isinstance(found, dict) else None
    return None


def _usage_from(found: dict[str, Any]) -> Usage:
    """Read OpenAI's and Anthropic's names."""
    return Usage(
        _count(found, "prompt_tokens", "input_tokens"),
        _count(found, "completion_tokens", "output_tokens"),
    )


def _count(found: dict[str, Any], *names: str) -> int:
    for name in names:
        value = found.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0


class UsageFilter:
    """Passes events as soon as they are whole, without the usage-only one.

    A usage-only event has an empty list of choices (OpenAI API reference, `stream_options`).
    """

    __slots__ = ("_rest", "dropped")

    def __init__(self) -> None:
        self._rest = b""
        self.dropped = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may pass now."""
        text = self._rest + chunk
        passed: list[bytes] = []
        begin = 0
        for match in _EVENT_END.finditer(text):
            event = text[begin : match.end()]
            begin = match.end()
            if _is_usage_only(event):
                self.dropped = event
            else:
                passed.append(event)
        self._rest = text[begin:]
        if len(self._rest) > EVENT_BYTES_MAX:
            passed.append(self._rest)
            self._rest = b""
        return b"".join(passed)

    def finish(self) -> bytes:
        """Return what never became a whole event."""
        rest, self._rest = self._rest, b""
        return rest


class _Event(msgspec.Struct):
    choices: Any = None
    usage: Any = None


_event_decoder: Final = msgspec.json.Decoder(_Event)


def _is_usage_only(event: bytes) -> bool:
    if b'"usage"' not in event or b'"choices"' not in event:
        return False
    try:
        found = _event_decoder.decode(_payload(event))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return found.choices == [] and isinstance(found.usage, dict)


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The error with which a stream began; `payload` is its JSON as the engine wrote it."""

    status: int
    payload: bytes

    @property
    def is_neutral(self) -> bool:
        """The request is at fault, not the replica: no other one would answer better."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


_ERROR_STARTS: Final = (b"event:error", b'data:{"error"')
#: Status by the error's type, where the error has no code.
_STATUS_OF_TYPE: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "NotFoundError": 404,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}


def wants_more(head: bytes) -> bool:
    """Say whether a stream that began with `head` may yet turn out to begin with an error."""
    if len(head) >= LOOK_BYTES_MAX or _EVENT_END.search(head):
        return False
    seen = _squeezed(head)
    return any(start.startswith(seen) or seen.startswith(start) for start in _ERROR_STARTS)


def first_error(head: bytes) -> ErrorEvent | None:
    """Return the error with which a stream begins, None if it begins with content."""
    if not _squeezed(head).startswith(_ERROR_STARTS):
        return None
    payload = _payload(_EVENT_END.split(head.lstrip(), 1)[0])
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorEvent(502, payload)
    error = found.get("error", found) if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return ErrorEvent(code, payload)
    return ErrorEvent(_STATUS_OF_TYPE.get(str(error.get("type")), 502), payload)


def _squeezed(head: bytes) -> bytes:
    return head[:256].translate(None, b" \t\r\n")[:16]


def _payload(event: bytes) -> bytes:
    """Return the joined data lines of an event."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(line[5:].lstrip() for line in lines if line.startswith(b"data:"))
