"""The live session of every node: commands go out through it, reports come in through it.

Rule 1: one live link a node. The same agent instance replaces its own half-open predecessor;
another instance with the same credential (a cloned disk) is refused while the first one speaks.
Rule 2: the hub decides nothing about replicas; it feeds the registry and wakes the reconciler.
Rule 3: a link whose outbox is full is a peer that does not read: it is cut off, memory stays flat.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from llmgw_common.clock import Clock
from llmgw_common.errors import LlmgwError
from llmgw_common.ids import IdSource, NodeId, ShardId
from llmgw_common.protocol.codec import encode
from llmgw_common.protocol.messages import (
    AgentMessage,
    Command,
    Going,
    Heartbeat,
    LogLines,
    Register,
    ShardStateEvent,
    StartShard,
    Sync,
    TailLogs,
    Term,
    Welcome,
)
from llmgw_server.channel.session import (
    Acked,
    ChannelLimits,
    Close,
    Deliver,
    Effect,
    Send,
    ServerSession,
)
from llmgw_server.fleet.registry import Change, FleetRegistry

log = structlog.get_logger(__name__)

#: Frames that may wait for a slow agent before it is cut off (design: fault C9).
OUTBOX_FRAMES_MAX: Final = 64
#: Batches of log lines that may wait for a slow reader of `logs -f`.
LOG_BATCHES_MAX: Final = 256


class TermKeeper(Protocol):
    """Keeps this server's term on disk; it never goes back as an agent sees it."""

    @property
    def term(self) -> Term:
        """The term that commands carry."""
        ...

    async def lift_above(self, seen: Term) -> None:
        """Raise the term above one that an agent has seen (a restored backup), durably."""
        ...


@dataclass(slots=True, kw_only=True)
class Link:
    """One open connection: its session and what waits to be written.

    `closing` is set when the connection must end, with the code and text to end it with.
    """

    node_id: NodeId
    session: ServerSession
    outbox: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(OUTBOX_FRAMES_MAX))
    closing: asyncio.Future[Close]


class Hub:
    """Owns the links; see the module's rules."""

    def __init__(
        self,
        registry: FleetRegistry,
        clock: Clock,
        ids: IdSource,
        term_keeper: TermKeeper,
        limits: ChannelLimits,
        wake: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._ids = ids
        self._term_keeper = term_keeper
        self._limits = limits
        self._wake = wake
        self._sessions_opened = 0
        self._links: dict[NodeId, Link] = {}
        self._log_readers: dict[str, asyncio.Queue[LogLines]] = {}

    # --- the endpoint's side ---------------------------------------------------------------------

    def open(self, node_id: NodeId) -> Link:
        """Begin a connection of an authenticated node."""
        self._sessions_opened += 1
        session = ServerSession(
            session=self._sessions_opened,
            limits=self._limits,
            new_id=lambda: self._ids.new("msg"),
            opened_at_s=self._clock.monotonic_s(),
        )
        return Link(
            node_id=node_id, session=session, closing=asyncio.get_running_loop().create_future()
        )

    async def receive(self, link: Link, message: AgentMessage | None) -> None:
        """Take one message of a connection."""
        await self._apply(link, link.session.receive(message, self._clock.monotonic_s()))

    async def tick(self, link: Link) -> float | None:
        """Apply the limits that have passed; return seconds until the next one, None when over."""
        now_s = self._clock.monotonic_s()
        await self._apply(link, link.session.tick(now_s))
        deadline_s = link.session.next_deadline_s()
        return None if deadline_s is None else max(deadline_s - now_s, 0.01)

    def close(self, link: Link, code: int, text: str) -> None:
        """End a connection; the endpoint carries it out."""
        link.session.closed()
        if not link.closing.done():
            link.closing.set_result(Close(code, text))

    def gone(self, link: Link) -> None:
        """The connection is over, whoever ended it."""
        link.session.closed()
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
            log.info("agent disconnected", node_id=link.node_id, session=link.session.session)
        self._registry.session_ended(link.node_id, link.session.session)
        self._wake()

    # --- the reconciler's side -------------------------------------------------------------------

    def is_connected(self, node_id: NodeId) -> bool:
        """Say whether commands can reach the node now."""
        return node_id in self._links

    def is_waiting(self, node_id: NodeId, is_it: Callable[[Command], bool]) -> bool:
        """Say whether a command that `is_it` names is on its way to the node."""
        link = self._links.get(node_id)
        return link is not None and link.session.is_waiting_for(is_it)

    def command(self, node_id: NodeId, command: Command) -> str:
        """Send a command, stamped with id, session and term; return its id.

        Raises:
            LlmgwError: `node_unreachable`, the node has no live session.
        """
        link = self._links.get(node_id)
        if link is None:
            raise LlmgwError("node_unreachable", f"node {node_id} is not connected")
        stamped = command.model_copy(
            update={
                "id": self._ids.new("cmd"),
                "session": link.session.session,
                "term": self._term_keeper.term,
            }
        )
        effects = link.session.command(stamped, self._clock.monotonic_s())
        for effect in effects:
            self._emit(link, effect)
        return stamped.id

    def disconnect(self, node_id: NodeId, text: str) -> None:
        """Drop the node's session, as when its credential was revoked."""
        link = self._links.get(node_id)
        if link:
            self.close(link, 1008, text)

    def close_all(self, text: str) -> None:
        """End every session: the server is going down."""
        for link in list(self._links.values()):
            self.close(link, 1012, text)

    async def tail_logs(
        self, node_id: NodeId, shard_id: ShardId, *, lines: int, follow: bool
    ) -> AsyncIterator[str]:
        """Yield lines of a shard's engine log; without `follow` it ends after the last.

        Raises:
            LlmgwError: `node_unreachable`, or `not_found` with the node's own words.
        """
        tail = TailLogs(id="", term=Term(), shard_id=shard_id, lines=lines, follow=follow)
        command_id = self.command(node_id, tail)
        link = self._links[node_id]
        queue: asyncio.Queue[LogLines] = asyncio.Queue(LOG_BATCHES_MAX)
        self._log_readers[command_id] = queue
        try:
            while True:
                batch = await _next_batch(queue, link)
                if batch.error:
                    raise LlmgwError("not_found", batch.error)
                for line in batch.lines:
                    yield line
                if batch.is_last:
                    return
        finally:
            del self._log_readers[command_id]
            if follow and self._links.get(node_id) is link:
                self.command(node_id, tail.model_copy(update={"cancel": command_id}))

    # --- effects ---------------------------------------------------------------------------------

    async def _apply(self, link: Link, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver(message=Register() as hello):
                    await self._registered(link, hello)
                case Deliver(message=message):
                    self._heard(link, message)
                case Acked(command=command, ack=ack):
                    if not ack.is_accepted:
                        self._refused(link, command, ack.code, ack.text)
                case _:
                    self._emit(link, effect)

    def _emit(self, link: Link, effect: Effect) -> None:
        match effect:
            case Send(message=message):
                try:
                    link.outbox.put_nowait(encode(message))
                except asyncio.QueueFull:
                    self.close(link, 1008, "the agent does not read what is sent to it")
            case Close(code=code, text=text):
                self.close(link, code, text)
            case _:
                raise TypeError(f"{effect!r} is not for the wire")

    async def _registered(self, link: Link, hello: Register) -> None:
        node = self._registry.view().nodes.get(link.node_id)
        if node is None:
            self.close(link, 1008, "this node is not enrolled here: join again")
            return
        other = self._links.get(link.node_id)
        if other is not None and other.session.instance_id != hello.instance_id:
            text = (
                f"another agent process uses the credential of node {node.name} and is connected; "
                "give each machine its own credential by a join token"
            )
            self._registry.note(
                Change(object_kind="node", object_id=node.node_id, code="cloned", text=text)
            )
            self.close(link, 1008, text)
            return
        if other is not None:
            self.close(other, 1000, "replaced by a newer connection of the same agent")
        await self._term_keeper.lift_above(hello.term_seen)
        self._links[link.node_id] = link
        now_s = self._clock.monotonic_s()
        claims = self._registry.register(link.node_id, link.session.session, hello, now_s)
        welcome = Welcome(
            id=self._ids.new("msg"),
            session=link.session.session,
            node_id=node.node_id,
            node_name=node.name,
            term=self._term_keeper.term,
            heartbeat_s=self._limits.heartbeat_s,
            read_idle_s=self._limits.read_idle_s,
        )
        sync = Sync(
            id=self._ids.new("msg"),
            session=link.session.session,
            claimed=claims.claimed,
            unclaimed=claims.unclaimed,
        )
        for effect in link.session.welcome(welcome, sync):
            self._emit(link, effect)
        log.info(
            "agent registered",
            node=node.name,
            node_id=node.node_id,
            session=link.session.session,
            shards=len(hello.shards),
            gpus=len(hello.node.gpus),
        )
        self._wake()

    def _heard(self, link: Link, message: AgentMessage) -> None:
        now_s = self._clock.monotonic_s()
        node_id, session = link.node_id, link.session.session
        match message:
            case Heartbeat():
                self._registry.heartbeat(node_id, session, message, now_s)
            case ShardStateEvent(shard=report):
                self._registry.report_shard(node_id, session, report, now_s)
            case LogLines():
                self._log_lines(link, message)
                return
            case Going(text=text):
                log.info("agent is going", node_id=node_id, text=text)
            case _:
                log.debug("command ended", node_id=node_id, kind=message.type)
        if self._registry.needs_pass:
            self._wake()

    def _log_lines(self, link: Link, message: LogLines) -> None:
        queue = self._log_readers.get(message.re)
        if queue is None:
            return
        try:
            queue.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("log reader too slow, lines dropped", node_id=link.node_id)

    def _refused(self, link: Link, command: Command, code: str, text: str) -> None:
        log.warning("command refused", node_id=link.node_id, code=code, text=text)
        if isinstance(command, StartShard):
            self._registry.refuse_shard(
                ShardId(command.shard_id), command.epoch, text or code, self._clock.monotonic_s()
            )
            self._wake()
        elif isinstance(command, TailLogs) and command.id in self._log_readers:
            lines = LogLines(id="", re=command.id, is_last=True, error=text or code)
            self._log_lines(link, lines)


async def _next_batch(queue: asyncio.Queue[LogLines], link: Link) -> LogLines:
    """Return the next batch, or say that the node went away."""
    take = asyncio.ensure_future(queue.get())
    try:
        waits: set[asyncio.Future[Any]] = {take, link.closing}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if take.done():
            return take.result()
        raise LlmgwError("node_unreachable", f"node {link.node_id} went away")
    finally:
        take.cancel()
