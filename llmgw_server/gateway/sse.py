"""Event streams: what is read of them never touches what is relayed.

`UsageTail` looks at the end of an answer for its token counts. `UsageFilter` takes out the one
event that we asked for and the client did not; all other bytes pass as they came.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

#: The usage of an answer stands in its last bytes.
TAIL_BYTES: Final = 16 << 10
#: A single event larger than this passes unread rather than being held back.
EVENT_BYTES_MAX: Final = 1 << 20

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class UsageTail:
    """Keeps the last bytes of an answer, and counts its content events."""

    __slots__ = ("_tail", "events")

    def __init__(self) -> None:
        self._tail = b""
        self.events = 0

    def feed(self, chunk: bytes) -> None:
        """Take a chunk that was relayed."""
        self.events += chunk.count(b"data:")
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def usage(self) -> Usage | None:
        """Return the last usage object, None if there is none."""
        at = self._tail.rfind(b'"usage"')
        while at >= 0:
            found = _object_at(self._tail, self._tail.find(b":", at) + 1)
            if found is not None:
                return _usage_from(found)
            at = self._tail.rfind(b'"usage"', 0, at)
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
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    payload = b"\n".join(line[5:].lstrip() for line in lines if line.startswith(b"data:"))
    try:
        found = _event_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return found.choices == [] and isinstance(found.usage, dict)


def is_error_event(chunk: bytes) -> bool:
    """Say whether a stream begins with an error instead of content."""
    head = chunk[:256].lstrip()
    return head.startswith((b"event: error", b"event:error")) or (
        head.startswith(b"data:") and head[5:].lstrip().startswith(b'{"error"')
    )
