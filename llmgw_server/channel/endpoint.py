"""The websocket that agents open, and the door where they trade a join token for a credential.

Only bytes are moved here; session.py is the protocol and hub.py its owner.

Rule 1: a request with an Origin header is refused: agents are no browsers.
Rule 2: the credential is checked before the websocket is accepted; the refusal says nothing more.
Rule 3: a write that takes longer than `WRITE_DEADLINE_S` ends the connection.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ConfigDict, Field
from starlette.websockets import WebSocketState

from llmgw_common.ids import NodeId
from llmgw_common.protocol.codec import PeerProtocolError, decode_from_agent
from llmgw_server.channel.hub import Hub, Link
from llmgw_server.channel.session import Close

log = structlog.get_logger(__name__)

WRITE_DEADLINE_S: Final = 10.0
#: Agents that may register at once; the others wait their turn (design: fault C7).
REGISTERING_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a node gets for its join token; the credential is shown only here."""

    node_id: NodeId
    node_name: str
    credential: str


class NodeDoor(Protocol):
    """Who may come in as a node."""

    async def join(
        self, *, token: str, node_name: str, instance_id: str, addresses: tuple[str, ...]
    ) -> Admission:
        """Trade a join token for a node credential; raises LlmgwError if the token is no good."""
        ...

    async def authenticate(self, credential: str) -> NodeId | None:
        """Return the node that the credential was given to, or None."""
        ...


class JoinRequest(BaseModel):
    """What an agent sends to join."""

    model_config = ConfigDict(extra="ignore")

    token: str = Field(max_length=200)
    node_name: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    instance_id: str = Field(default="", max_length=200)
    addresses: tuple[str, ...] = Field(min_length=1, max_length=16)


class JoinResponse(BaseModel):
    """What an agent keeps."""

    node_id: str
    node_name: str
    credential: str


def agent_routes(hub: Hub, door: NodeDoor) -> APIRouter:
    """Return the routes under /agent/v1."""
    router = APIRouter(prefix="/agent/v1", tags=["agents"])
    registering = asyncio.Semaphore(REGISTERING_MAX)

    @router.post("/join", operation_id="join_node")
    async def join(request: JoinRequest) -> JoinResponse:
        admitted = await door.join(
            token=request.token,
            node_name=request.node_name,
            instance_id=request.instance_id,
            addresses=request.addresses,
        )
        return JoinResponse(
            node_id=admitted.node_id,
            node_name=admitted.node_name,
            credential=admitted.credential,
        )

    @router.websocket("/connect")
    async def connect(websocket: WebSocket) -> None:
        async with registering:
            node_id = await _authenticate(websocket, door)
            if node_id is None:
                await websocket.close(1008)
                return
            await websocket.accept()
        await _serve(websocket, hub, hub.open(node_id))

    return router


async def _authenticate(websocket: WebSocket, door: NodeDoor) -> NodeId | None:
    if "origin" in websocket.headers:
        return None
    scheme, _, credential = websocket.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not credential:
        return None
    return await door.authenticate(credential)


async def _serve(websocket: WebSocket, hub: Hub, link: Link) -> None:
    """Run one connection until either side ends it."""
    tasks = [
        asyncio.create_task(_read(websocket, hub, link), name="agent-read"),
        asyncio.create_task(_write(websocket, link), name="agent-write"),
        asyncio.create_task(_tick(hub, link), name="agent-tick"),
    ]
    try:
        waits: set[asyncio.Future[Any]] = {link.closing, *tasks}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        hub.gone(link)
        await _end(websocket, link)
        for outcome in ended:
            if isinstance(outcome, Exception):
                log.warning("agent connection failed", node_id=link.node_id, error=repr(outcome))


async def _read(websocket: WebSocket, hub: Hub, link: Link) -> None:
    try:
        while True:
            message = decode_from_agent(await websocket.receive_text())
            await hub.receive(link, message)
    except WebSocketDisconnect:
        return
    except KeyError:
        hub.close(link, 1003, "binary frames are not used on this channel")
    except PeerProtocolError as error:
        log.warning("agent broke the protocol", node_id=link.node_id, error=str(error))
        hub.close(link, error.close_code, str(error))


async def _write(websocket: WebSocket, link: Link) -> None:
    try:
        while True:
            frame = await link.outbox.get()
            async with asyncio.timeout(WRITE_DEADLINE_S):
                await websocket.send_text(frame)
    except (TimeoutError, WebSocketDisconnect):
        return


async def _tick(hub: Hub, link: Link) -> None:
    while True:
        wait_s = await hub.tick(link)
        if wait_s is None:
            return
        # A command sent meanwhile has an earlier deadline than the one we know: look each second.
        await asyncio.sleep(min(wait_s, 1.0))


async def _end(websocket: WebSocket, link: Link) -> None:
    close = link.closing.result() if link.closing.done() else Close(1000, "")
    link.closing.cancel()
    if websocket.application_state is not WebSocketState.CONNECTED:
        return
    try:
        async with asyncio.timeout(1.0):
            await websocket.close(close.code, close.text[:120])
    except (TimeoutError, RuntimeError, WebSocketDisconnect):
        return
