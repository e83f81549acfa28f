"""The simulated engine's HTTP side: OpenAI-style answers by the script."""

import asyncio
import hmac
import itertools
import json
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from llmgw_agent.engines.simulated.script import Script

_WORDS = ("The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog")


@dataclass(slots=True)
class Engine:
    """One running engine: its script and its counts."""

    script: Script
    is_loaded: bool = False
    running: int = 0
    waiting: int = 0
    answered: int = 0
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Make the slots."""
        self.slots = asyncio.Semaphore(self.script.slots)

    async def live(self) -> None:
        """Load, then live as long as the script says."""
        await asyncio.sleep(self.script.load_s)
        if self.script.fail_load:
            print(self.script.fail_load, flush=True)
            os._exit(1)
        self.is_loaded = True
        print("model loaded", flush=True)
        if self.script.exit_after_s:
            await asyncio.sleep(self.script.exit_after_s)
            print("the script says: exit", flush=True)
            os._exit(self.script.exit_code)

    async def tokens(self, count: int) -> AsyncIterator[str]:
        """Yield words at the script's pace; holds a slot for as long as somebody listens."""
        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            if self._hangs():
                await asyncio.Event().wait()
            await asyncio.sleep(self.script.first_token_s)
            for word in itertools.islice(itertools.cycle(_WORDS), count):
                yield word + " "
                await asyncio.sleep(1 / self.script.tokens_per_s)
        finally:
            self.running -= 1
            self.slots.release()
        self.answered += 1
        if self.script.exit_after_requests and self.answered >= self.script.exit_after_requests:
            print("the script says: exit", flush=True)
            asyncio.get_running_loop().call_later(0.05, os._exit, self.script.exit_code)

    def _hangs(self) -> bool:
        limit = self.script.hang_after_requests
        return bool(limit) and self.answered >= limit


def create_app(engine: Engine) -> Starlette:
    """Return the HTTP application."""
    routes = [
        Route("/health", _health),
        Route("/v1/models", _models),
        Route("/v1/chat/completions", _generate, methods=["POST"]),
        Route("/v1/completions", _generate, methods=["POST"]),
        Route("/v1/embeddings", _embeddings, methods=["POST"]),
        Route("/tokenize", _tokenize, methods=["POST"]),
        Route("/metrics", _metrics),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        life = asyncio.create_task(engine.live(), name="life")
        yield
        life.cancel()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refuse})
    app.state.engine = engine
    return app


def _engine(request: Request) -> Engine:
    found: Engine = request.app.state.engine
    return found


def _refusal(request: Request) -> Response | None:
    engine = _engine(request)
    sent = request.headers.get("authorization", "").removeprefix("Bearer ")
    if engine.script.api_key and not hmac.compare_digest(sent, engine.script.api_key):
        return _error(401, "invalid api key")
    return None if engine.is_loaded else _error(503, "loading model")


def _error(status: int, text: str) -> JSONResponse:
    body = {"error": {"message": text, "type": "error", "code": status}}
    return JSONResponse(body, status_code=status)


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _error(error.status_code, error.detail)


async def _health(request: Request) -> Response:
    is_loaded = _engine(request).is_loaded
    return JSONResponse({"status": "ok"}) if is_loaded else _error(503, "loading model")


async def _models(request: Request) -> Response:
    engine = _engine(request)
    entry = {"id": engine.script.model, "object": "model", "created": 0, "owned_by": "simulated"}
    return _refusal(request) or JSONResponse({"object": "list", "data": [entry]})


async def _generate(request: Request) -> Response:
    refusal = _refusal(request)
    if refusal:
        return refusal
    engine = _engine(request)
    body = await _body(request)
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or engine.script.tokens
    if body.keys().isdisjoint(("messages", "prompt")) or not isinstance(asked, int) or asked < 1:
        raise HTTPException(400, "messages or prompt is needed, and a positive max_tokens if any")
    count = min(asked, engine.script.tokens)
    is_chat = request.url.path.endswith("/chat/completions")
    prompt_tokens = len(json.dumps(body.get("messages") or body.get("prompt") or "")) // 4
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "total_tokens": prompt_tokens + count,
    }
    if body.get("stream") is True:
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = _stream(engine, count, is_chat, usage if wants_usage else None)
        return StreamingResponse(events, media_type="text/event-stream")
    text = await _unless_left(request, _text(engine, count))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    return JSONResponse(_envelope(engine, is_chat, choices=[choice], usage=usage))


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "the body is no JSON object")
    return body


async def _text(engine: Engine, count: int) -> str:
    return "".join([token async for token in engine.tokens(count)])


async def _unless_left(request: Request, answer: Coroutine[Any, Any, str]) -> str:
    """Return the answer; it ends at once if the client leaves, and so does this request."""
    doing, leaving = asyncio.create_task(answer), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else ""
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(
    engine: Engine, count: int, is_chat: bool, usage: dict[str, int] | None
) -> AsyncIterator[bytes]:
    async for token in engine.tokens(count):
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice |= {"delta": {"content": token}} if is_chat else {"text": token}
        yield _event(_envelope(engine, is_chat, choices=[choice]))
    last: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    empty: dict[str, Any] = {}
    last |= {"delta": empty} if is_chat else {"text": ""}
    yield _event(_envelope(engine, is_chat, choices=[last]))
    if usage:
        yield _event(_envelope(engine, is_chat, choices=[], usage=usage))
    yield b"data: [DONE]\n\n"


def _envelope(engine: Engine, is_chat: bool, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    kind = "chat.completion" if is_chat else "text_completion"
    return {
        "id": f"sim-{engine.answered}",
        "object": kind,
        "created": 0,
        "model": engine.script.model,
        **fields,
    }


def _event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


async def _embeddings(request: Request) -> Response:
    refusal = _refusal(request)
    if refusal:
        return refusal
    body = await _body(request)
    inputs = body["input"] if isinstance(body.get("input"), list) else [body.get("input", "")]
    rows = [
        {"object": "embedding", "index": i, "embedding": [len(str(text)) / 100, 0.5, -0.5]}
        for i, text in enumerate(inputs)
    ]
    tokens = sum(len(str(text)) // 4 for text in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    model = _engine(request).script.model
    return JSONResponse({"object": "list", "data": rows, "model": model, "usage": usage})


async def _tokenize(request: Request) -> Response:
    refusal = _refusal(request)
    if refusal:
        return refusal
    body = await _body(request)
    words = str(body.get("prompt") or body.get("content") or "").split()
    return JSONResponse({"count": len(words), "tokens": list(range(len(words)))})


async def _metrics(request: Request) -> Response:
    engine = _engine(request)
    return PlainTextResponse(
        f"vllm:num_requests_running {engine.running}\n"
        f"vllm:num_requests_waiting {engine.waiting}\n"
        f"vllm:kv_cache_usage_perc {engine.running / engine.script.slots}\n"
    )
