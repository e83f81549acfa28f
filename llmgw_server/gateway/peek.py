"""The few fields of a request that the gateway reads; the body itself passes untouched.

Only two things are ever changed in a body: `model` where the engine's name for it differs, and
`stream_options.include_usage` where a stream would otherwise not tell its tokens. Everything else,
unknown fields and nulls included, stays as the client wrote it.
"""

import zlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from llmgw_server.gateway.errors import Refusal

#: Paths whose streams take `stream_options`.
_TAKES_STREAM_OPTIONS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})


class _Fields(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """What was read.

    Attributes:
        is_stream: only the JSON value true means stream (case B15).
        asked_for_usage: the client wants the usage event of a stream.
        has_odd_options: its stream_options are no object: the engine's to refuse, not ours to mend.
    """

    model: str
    is_stream: bool
    asked_for_usage: bool
    has_odd_options: bool = False


_decoder: Final = msgspec.json.Decoder(_Fields)
_raw_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_body(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return the body as the engine can read it.

    Raises:
        Refusal: 415 for an unknown encoding, 400 for a broken one, 413 for too much.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Refusal(
            status=415,
            code="unsupported_encoding",
            message=f"Content-Encoding {encoding[:40]!r} is not supported; use gzip or none.",
        )
    window = 15 if encoding == "deflate" else 31
    unpacker = zlib.decompressobj(window)
    try:
        plain = unpacker.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise Refusal(
            status=400, code="bad_encoding", message=f"The body is no valid {encoding}."
        ) from error
    if len(plain) > limit_bytes:
        raise too_large(limit_bytes)
    if not unpacker.eof:
        raise Refusal(status=400, code="bad_encoding", message=f"The {encoding} body is cut off.")
    return plain


def too_large(limit_bytes: int) -> Refusal:
    """Return the refusal of a body over the limit."""
    return Refusal(
        status=413,
        code="request_too_large",
        message=f"The body is larger than {limit_bytes} bytes (gateway.max_body).",
    )


def peek(body: bytes) -> Peek:
    """Read the few fields.

    Raises:
        Refusal: 400, the body is no JSON object or names no model.
    """
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refusal(
            status=400, code="invalid_json", message="The body is not a JSON object."
        ) from error
    if not isinstance(fields.model, str) or not fields.model:
        raise Refusal(
            status=400,
            code="missing_model",
            message='The body names no model: send "model": "..." as text.',
            param="model",
        )
    options = fields.stream_options
    return Peek(
        model=fields.model,
        is_stream=fields.stream is True,
        asked_for_usage=isinstance(options, dict) and options.get("include_usage") is True,
        has_odd_options=options is not None and not isinstance(options, dict),
    )


def for_engine(body: bytes, path: str, found: Peek, served_model: str) -> tuple[bytes, bool]:
    """Return the body to send and whether we asked for usage that the client did not ask for."""
    asks_already = found.asked_for_usage or found.has_odd_options
    adds_usage = found.is_stream and not asks_already and path in _TAKES_STREAM_OPTIONS
    if found.model == served_model and not adds_usage:
        return body, False
    fields = _raw_decoder.decode(body)
    if found.model != served_model:
        fields["model"] = msgspec.Raw(msgspec.json.encode(served_model))
    if adds_usage:
        options = msgspec.json.decode(fields.get("stream_options", b"{}")) or {}
        fields["stream_options"] = msgspec.Raw(
            msgspec.json.encode(options | {"include_usage": True})
        )
    return msgspec.json.encode(fields), adds_usage
