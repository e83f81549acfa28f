"""Which headers cross the gateway, in both directions.

Rule 1: the engine's request is rebuilt from what is allowed, never copied from the client's.
Rule 2: of an answer everything passes but what belongs to one connection (RFC 9110, 7.6.1).
"""

from typing import Final

from llmgw_server.gateway.table import Target

Headers = list[tuple[bytes, bytes]]

#: Request headers that go on to the engine.
_PASSED_ON: Final = frozenset(
    {
        b"accept", b"content-type", b"user-agent", b"anthropic-version", b"anthropic-beta",
        b"traceparent", b"tracestate",
    }
)  # fmt: skip
#: Answer headers that belong to one connection only, or that our own server sets.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
        b"transfer-encoding", b"server", b"date", b"access-control-allow-origin",
    }
)  # fmt: skip


def engine_request(
    path: str, headers: Headers, request_id: str, target: Target, body: bytes
) -> bytes:
    """Return the request for the engine: our Host, its own key, identity encoding."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        b"POST " + path.encode("latin-1") + b" HTTP/1.1",
        f"host: {host}:{target.port}".encode(),
        b"content-length: " + str(len(body)).encode(),
        b"accept-encoding: identity",
        b"x-request-id: " + request_id.encode(),
    ]
    if target.access_key:
        lines.append(b"authorization: Bearer " + target.access_key.encode())
    lines.extend(name + b": " + value for name, value in headers if name in _PASSED_ON)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def is_event_stream(headers: Headers) -> bool:
    """Say whether an answer is a stream of events."""
    return any(n == b"content-type" and b"text/event-stream" in v.lower() for n, v in headers)


def client_headers(headers: Headers, replica_id: str, *, is_stream: bool) -> Headers:
    """Return the headers of the engine's answer as the client gets them."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    kept = [(n, v) for n, v in headers if n not in _HOP_BY_HOP and n not in named]
    if is_stream:
        kept = [(n, v) for n, v in kept if n not in (b"content-length", b"cache-control")]
        kept += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    return [*kept, (b"x-llmgw-replica", replica_id.encode())]
