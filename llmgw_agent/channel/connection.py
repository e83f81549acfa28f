"""The agent's socket: join, connect, talk, and come back after every end.

Rule 1: reconnects wait a random time up to a bound that doubles from 0.5 s to 15 s (full jitter):
a thousand agents do not return in step.
Rule 2: what waits to be written is bounded; a server that does not read is disconnected.
Rule 3: engines are not touched by any of this.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httpx
import structlog
import websockets
from websockets.asyncio.client import ClientConnection, connect

from llmgw_agent.channel.commands import Commands
from llmgw_agent.channel.credential import Credential, Identity
from llmgw_agent.channel.session import (
    AgentSession,
    Beat,
    Close,
    Effect,
    Joined,
    Keep,
    Obey,
    Send,
    SessionState,
    Synced,
)
from llmgw_agent.channel.trust import tls_context
from llmgw_agent.settings import AgentSettings
from llmgw_common.clock import Clock
from llmgw_common.command_line import read_secret
from llmgw_common.errors import LlmgwError
from llmgw_common.mint import jitter
from llmgw_common.protocol.codec import (
    FRAME_BYTES_MAX,
    PeerProtocolError,
    decode_from_server,
    encode,
)
from llmgw_common.protocol.messages import Going, Heartbeat, Message, Register

log = structlog.get_logger(__name__)

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 15.0
#: Messages that may wait for a server that does not read.
OUTBOX_MAX: Final = 1024
_WRITE_DEADLINE_S: Final = 10.0
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the connection asks the agent for.

    Attributes:
        register: the whole first message (its term is set by the connection).
        heartbeat: the whole regular message of a sequence number.
    """

    register: Callable[[], Awaitable[Register]]
    heartbeat: Callable[[int], Awaitable[Heartbeat]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """Who joins: the wished name, this process's random id, the data addresses."""

    node_name: str
    instance_id: str
    addresses: tuple[str, ...]


class Connection:
    """Keeps one connection to the server; see the module's rules."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: Identity,
        reports: Reports,
        clock: Clock,
        me: Me,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._reports = reports
        self._clock = clock
        self._me = me
        self._session: AgentSession | None = None
        self._outbox: asyncio.Queue[str] = asyncio.Queue(OUTBOX_MAX)
        self._written = asyncio.Event()
        self._is_refused = False
        self.commands: Commands | None = None

    def send(self, message: Message) -> None:
        """Send a message if the session is live; else drop it, as the next register tells all."""
        session = self._session
        if session is None or session.state is not SessionState.LIVE:
            return
        stamped = message.model_copy(update={"session": session.session})
        try:
            self._outbox.put_nowait(encode(stamped))
            self._written.clear()
        except asyncio.QueueFull:
            log.warning("the server does not read; the connection ends")
            session.state = SessionState.CLOSED

    async def run(self) -> None:
        """Join if need be, connect, talk, reconnect; until cancelled."""
        bound_s = BACKOFF_FIRST_S
        while True:
            try:
                credential = await self._credential()
                was_live = await self._talk(credential)
            except (OSError, TimeoutError, httpx.TransportError) as error:
                was_live = False
                log.warning(
                    "the server cannot be reached", server=self._settings.server, error=str(error)
                )
            except websockets.InvalidStatus as error:
                was_live = False
                self._refused(error.response.status_code)
            except (LlmgwError, websockets.WebSocketException, PeerProtocolError) as error:
                was_live = False
                log.warning("not connected", server=self._settings.server, error=str(error))
            bound_s = BACKOFF_FIRST_S if was_live else min(bound_s * 2, BACKOFF_MAX_S)
            await asyncio.sleep(jitter(0.05, bound_s))

    def _refused(self, status: int) -> None:
        text = f"the server answered {status}"
        self._is_refused = status in _REFUSED
        if self._is_refused:
            text += ": this node's credential is not known there; a join token lets it in again"
        log.warning("not connected", server=self._settings.server, error=text)

    # --- joining ---------------------------------------------------------------------------------

    async def _credential(self) -> Credential:
        known = self._identity.credential()
        if known and not self._is_refused:
            return known
        token = self._settings.join_token.get_secret_value()
        if not token and self._settings.join_token_file:
            path = self._settings.join_token_file
            token = await asyncio.to_thread(read_secret, path, "join_token_file")
        if known and not token:
            return known
        if not token:
            text = "this node has not joined: make a token (llmgw join-token), set join_token_file"
            raise LlmgwError("unauthenticated", text)
        try:
            return await self._join(token)
        except LlmgwError:
            if known is None:
                raise
            return known  # a token that is used up: the old credential may yet be known again

    async def _join(self, token: str) -> Credential:
        body = {
            "token": token,
            "node_name": self._me.node_name,
            "instance_id": self._me.instance_id,
            "addresses": self._me.addresses,
        }
        verify = await self._tls() or True
        async with httpx.AsyncClient(verify=verify, timeout=10.0) as client:
            answer = await client.post(f"{self._settings.server}/agent/v1/join", json=body)
        if answer.status_code != httpx.codes.OK:
            detail = answer.json().get("detail", "") if _is_json(answer) else ""
            text = f"the server refused to let this node join ({answer.status_code}): {detail}"
            raise LlmgwError("unauthenticated", text)
        found = answer.json()
        credential = Credential(
            node_id=found["node_id"], node_name=found["node_name"], secret=found["credential"]
        )
        await asyncio.to_thread(self._identity.keep_credential, credential)
        log.info("joined", node=credential.node_name, node_id=credential.node_id)
        return credential

    async def _tls(self) -> ssl.SSLContext | None:
        tls = self._settings.tls
        return await tls_context(
            self._settings.server, ca_file=tls.ca_file, fingerprint=tls.fingerprint
        )

    # --- talking ---------------------------------------------------------------------------------

    async def _talk(self, credential: Credential) -> bool:
        """Hold one connection to its end; return whether the server welcomed us."""
        url = self._settings.server.replace("http", "ws", 1) + "/agent/v1/connect"
        async with connect(
            url,
            ssl=await self._tls(),
            additional_headers={"authorization": f"Bearer {credential.secret}"},
            max_size=FRAME_BYTES_MAX,
            open_timeout=10.0,
            close_timeout=1.0,
            proxy=None,
            compression=None,
        ) as socket:
            session = AgentSession(
                term=await asyncio.to_thread(self._identity.term),
                opened_at_s=self._clock.monotonic_s(),
            )
            self._session = session
            self._outbox = asyncio.Queue(OUTBOX_MAX)
            hello = await self._reports.register()
            hello = hello.model_copy(update={"term_seen": session.term})
            await socket.send(encode(hello))
            try:
                await self._until_over(socket, session)
            finally:
                was_live = session.session > 0
                self._is_refused = self._is_refused and not was_live
                session.state = SessionState.CLOSED
                if self.commands:
                    await self.commands.close()
            log.info("disconnected", code=socket.close_code, text=socket.close_reason)
            return was_live

    async def _until_over(self, socket: ClientConnection, session: AgentSession) -> None:
        tasks = [
            asyncio.create_task(self._read(socket, session), name="channel-read"),
            asyncio.create_task(self._write(socket), name="channel-write"),
            asyncio.create_task(self._tick(session), name="channel-tick"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: ClientConnection, session: AgentSession) -> None:
        with suppress(websockets.ConnectionClosed):
            async for frame in socket:
                message = decode_from_server(frame)
                effects = session.receive(message, self._clock.monotonic_s())
                if not await self._carry_out(session, effects):
                    return

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(websockets.ConnectionClosed):
            while True:
                frame = await self._outbox.get()
                async with asyncio.timeout(_WRITE_DEADLINE_S):
                    await socket.send(frame)
                if self._outbox.empty():
                    self._written.set()

    async def _tick(self, session: AgentSession) -> None:
        while session.state is not SessionState.CLOSED:
            now_s = self._clock.monotonic_s()
            if not await self._carry_out(session, session.tick(now_s)):
                return
            await asyncio.sleep(min(max(session.next_deadline_s() - now_s, 0.01), 1.0))

    async def _carry_out(self, session: AgentSession, effects: list[Effect]) -> bool:
        """Carry out effects in order; return False when the connection must end."""
        for effect in effects:
            match effect:
                case Send(message=message):
                    self.send(message)
                case Close(text=text):
                    log.warning("connection ended", why=text)
                    return False
                case Keep(term=term):
                    await asyncio.to_thread(self._identity.keep_term, term)
                case Obey(command=command):
                    if self.commands:
                        self.send(self.commands.obey(command, session.session))
                case Beat(sequence=sequence):
                    self.send(await self._reports.heartbeat(sequence))
                case Joined(welcome=welcome):
                    log.info("connected", node=welcome.node_name, session=welcome.session)
                case Synced(sync=sync):
                    log.info("synced", claimed=len(sync.claimed), unclaimed=len(sync.unclaimed))
        return True

    async def say_going(self, text: str) -> None:
        """Tell the server that the agent ends by intent, and let the message leave."""
        self.send(Going(id="going", text=text))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self._written.wait()


def _is_json(answer: httpx.Response) -> bool:
    return "json" in answer.headers.get("content-type", "")
