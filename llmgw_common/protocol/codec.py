"""Messages to JSON text frames and back, with limits.

Rule 1: a frame above the limit, or one that is no valid message of a known type, is the peer's
fault and raises `PeerProtocolError`; the connection ends with its code.
Rule 2: a message of an unknown type is no fault (the peer may be newer): decode returns None.
"""

from typing import Final, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from llmgw_common.protocol.messages import AgentMessage, Message, ServerMessage

Decoded = TypeVar("Decoded")

#: Largest frame either end accepts (design: control channel).
FRAME_BYTES_MAX: Final = 1 << 20

_AGENT: Final[TypeAdapter[AgentMessage]] = TypeAdapter(AgentMessage)
_SERVER: Final[TypeAdapter[ServerMessage]] = TypeAdapter(ServerMessage)


def _types(union: object) -> frozenset[str]:
    return frozenset(m.model_fields["type"].default for m in get_args(get_args(union)[0]))


_AGENT_TYPES: Final = _types(AgentMessage)
_SERVER_TYPES: Final = _types(ServerMessage)


class PeerProtocolError(Exception):
    """The peer broke the protocol; `close_code` ends the websocket (RFC 6455, 7.4.1)."""

    def __init__(self, text: str, close_code: int = 1008) -> None:
        super().__init__(text)
        self.close_code = close_code


def encode(message: Message) -> str:
    """Return the frame; `trace` and other None values are left out."""
    return message.model_dump_json(exclude_none=True)


def _decode(frame: str | bytes, known: frozenset[str]) -> dict[str, object] | None:
    if isinstance(frame, bytes):
        raise PeerProtocolError("binary frames are not used on this channel", 1003)
    if len(frame) > FRAME_BYTES_MAX:
        raise PeerProtocolError(f"frame of {len(frame)} characters is over {FRAME_BYTES_MAX}", 1009)
    try:
        parsed = from_json(frame)
    except ValueError as error:
        raise PeerProtocolError("frame is no JSON", 1007) from error
    kind = parsed.get("type") if isinstance(parsed, dict) else None
    if not isinstance(kind, str):
        raise PeerProtocolError("frame is no message: it has no type")
    return parsed if kind in known else None


def _validated(adapter: TypeAdapter[Decoded], parsed: dict[str, object]) -> Decoded:
    try:
        return adapter.validate_python(parsed)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        text = f"bad {parsed['type']} message: {place}: {first['msg']}"
        raise PeerProtocolError(text) from error


def decode_from_agent(frame: str | bytes) -> AgentMessage | None:
    """Return the message, or None if its type is unknown here.

    Raises:
        PeerProtocolError: the frame is too large, no JSON, or not what its type says.
    """
    parsed = _decode(frame, _AGENT_TYPES)
    return None if parsed is None else _validated(_AGENT, parsed)


def decode_from_server(frame: str | bytes) -> ServerMessage | None:
    """Return the message, or None if its type is unknown here.

    Raises:
        PeerProtocolError: the frame is too large, no JSON, or not what its type says.
    """
    parsed = _decode(frame, _SERVER_TYPES)
    return None if parsed is None else _validated(_SERVER, parsed)
