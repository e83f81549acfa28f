"""What a client is told when it cannot be served, in the shape of the API it speaks."""

from dataclasses import dataclass
from typing import Final

import msgspec


@dataclass(kw_only=True, eq=False)
class Refusal(Exception):  # noqa: N818 - an outcome that is sent to a client, not a fault
    """An answer that ends a request.

    Attributes:
        code: stable word for programs.
        retry_after_s: seconds after which the same request may succeed, None if it will not.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that go with it."""
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", str(self.retry_after_s).encode())]


_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
}


def is_anthropic(path: str) -> bool:
    """Say whether a path speaks Anthropic's API."""
    return path.startswith("/v1/messages")


def body_of(refusal: Refusal, path: str) -> bytes:
    """Return the JSON body in the shape of the path's API.

    Source: the error objects of the OpenAI and Anthropic API references.
    """
    kind = _TYPES.get(refusal.status, "api_error")
    if is_anthropic(path):
        error = {"type": kind, "message": refusal.message}
        return msgspec.json.encode({"type": "error", "error": error})
    openai_kind = "invalid_request_error" if refusal.status in (400, 401, 404) else kind
    return msgspec.json.encode(
        {
            "error": {
                "message": refusal.message,
                "type": openai_kind,
                "param": refusal.param,
                "code": refusal.code,
            }
        }
    )


def event_of(refusal: Refusal, path: str) -> bytes:
    """Return the error as the last event of a stream that has begun."""
    body = body_of(refusal, path)
    name = b"event: error\n" if is_anthropic(path) else b""
    return name + b"data: " + body + b"\n\n"
