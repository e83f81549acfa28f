"""Server-sent events: a stream of JSON payloads with a comment now and then to keep it open."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeVar

from fastapi.responses import StreamingResponse
from pydantic import BaseModel

Value = TypeVar("Value")

#: A comment is sent after this much silence, so that nobody in between closes the connection.
KEEP_OPEN_S: Final = 15.0


def stream(
    values: AsyncIterator[Value],
    show: Callable[[Value], BaseModel],
    ident: Callable[[Value], str] | None = None,
) -> StreamingResponse:
    """Return a response that sends each value as it comes; `ident` gives the event's id."""
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(
        _lines(values, show, ident), media_type="text/event-stream", headers=headers
    )


async def _lines(
    values: AsyncIterator[Value],
    show: Callable[[Value], BaseModel],
    ident: Callable[[Value], str] | None,
) -> AsyncIterator[str]:
    yield ": open\n\n"
    waiting = asyncio.ensure_future(anext(values, None))
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=KEEP_OPEN_S)
            if not done:
                yield ": still open\n\n"
                continue
            value = waiting.result()
            if value is None:
                return
            head = f"id: {ident(value)}\n" if ident else ""
            yield f"{head}data: {show(value).model_dump_json()}\n\n"
            waiting = asyncio.ensure_future(anext(values, None))
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
