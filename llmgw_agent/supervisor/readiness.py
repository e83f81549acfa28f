"""When does an engine serve? Port open -> health -> served name -> one real token.

Rule 1: the port must be held by a process of this shard: another program that answers on it (a
port that was stolen between test and launch) is not our engine.
Rule 2: a single failed poll is no verdict; the start deadline is.
Rule 3: the last proof is an answer with a token (or an embedding) in it, not a health page.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import psutil

from llmgw_agent.supervisor.processes import of_shard
from llmgw_common.errors import LlmgwError

_POLL_S: Final = 0.1
_REQUEST_S: Final = 10.0
#: A first answer may compile kernels.
_FIRST_TOKEN_S: Final = 120.0

_ROUTES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    ),
    "completion": ("/v1/completions", {"prompt": "Hi", "max_tokens": 1}),
    "embedding": ("/v1/embeddings", {"input": "Hi"}),
}


async def wait_listening(shard_id: str, port: int) -> None:
    """Return when a process of the shard listens on the port."""
    await _until(lambda: asyncio.to_thread(_holds_port, shard_id, port))


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await is_so():
            return
        await asyncio.sleep(_POLL_S)


def _holds_port(shard_id: str, port: int) -> bool:
    for pid in of_shard(shard_id):
        try:
            sockets = psutil.Process(pid).net_connections(kind="tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets):
            return True
    return False


async def wait_serving(
    url: str, key: str, *, health_path: str, kind: str, served: str, tell: Callable[[str], None]
) -> None:
    """Return when the engine gave one real token.

    Raises:
        LlmgwError: `conflict`, it serves, but another model than asked.
    """
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_REQUEST_S, trust_env=False
    ) as client:
        tell("waiting for the engine to be healthy")
        await _until(lambda: _answers(client, health_path))
        await _check_served(client, served)
        tell("waiting for the first token")
        await _until(lambda: _gives_a_token(client, kind, served))


async def _answers(client: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await client.get(path)).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def _check_served(client: httpx.AsyncClient, served: str) -> None:
    try:
        answer = await client.get("/v1/models")
        names = [entry["id"] for entry in answer.json()["data"]]
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return  # no list is no contradiction
    if names and served not in names:
        text = f"the engine serves {', '.join(map(str, names))} instead of {served}"
        raise LlmgwError("conflict", text)


async def _gives_a_token(client: httpx.AsyncClient, kind: str, served: str) -> bool:
    if kind not in _ROUTES:
        return True  # nothing small can be asked of audio and image models: health must do
    path, body = _ROUTES[kind]
    try:
        answer = await client.post(path, json={"model": served, **body}, timeout=_FIRST_TOKEN_S)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK
