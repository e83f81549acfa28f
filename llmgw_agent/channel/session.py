"""The agent's half of one connection, sans-IO: messages and time in, effects out.

    registering --welcome--> live --close--> closed

Rule 1: a command of another session, or of an older term, changes nothing. The same counter with
another leader id is two servers that both think they reign: refused, too.
Rule 2: a higher term is kept on disk before its first command is obeyed (`Keep` comes first).
Rule 3: silence longer than the read-idle limit ends the connection.
Rule 4: heartbeats carry everything, so a lost event heals with the next one.
"""

from dataclasses import dataclass
from enum import StrEnum

from llmgw_common.protocol.messages import (
    Ack,
    Command,
    HeartbeatAck,
    Message,
    ServerMessage,
    Sync,
    Term,
    Welcome,
)


@dataclass(frozen=True, slots=True)
class Send:
    """Write this message to the server."""

    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection."""

    text: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this term to disk, durably, before the effects that follow."""

    term: Term


@dataclass(frozen=True, slots=True)
class Obey:
    """Carry out this command and ack it."""

    command: Command


@dataclass(frozen=True, slots=True)
class Beat:
    """It is time for a heartbeat of this number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The server welcomed us."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Synced:
    """The server told which of our shards it claims."""

    sync: Sync


Effect = Send | Close | Keep | Obey | Beat | Joined | Synced


class SessionState(StrEnum):
    """Where the connection stands."""

    REGISTERING = "registering"
    LIVE = "live"
    CLOSED = "closed"


@dataclass(slots=True)
class AgentSession:
    """See the module's rules.

    Attributes:
        term: the highest term obeyed so far.
        dropped: messages that changed nothing.
    """

    term: Term
    opened_at_s: float
    read_idle_s: float = 15.0
    heartbeat_s: float = 5.0
    state: SessionState = SessionState.REGISTERING
    session: int = 0
    sequence: int = 0
    dropped: int = 0
    heard_at_s: float = 0.0
    beat_at_s: float = 0.0

    def __post_init__(self) -> None:
        """The connection has just opened: that counts as being heard."""
        self.heard_at_s = self.opened_at_s

    def receive(self, message: ServerMessage | None, now_s: float) -> list[Effect]:
        """Take a message (None: of an unknown type) and return what follows from it."""
        if self.state is SessionState.CLOSED:
            return []
        self.heard_at_s = now_s
        if message is None:
            self.dropped += 1
            return []
        if isinstance(message, Welcome):
            return self._welcome(message, now_s)
        if self.state is not SessionState.LIVE or message.session != self.session:
            self.dropped += 1
            return []
        if isinstance(message, HeartbeatAck):
            return []
        if isinstance(message, Sync):
            return [Synced(message)]
        return self._command(message)

    def tick(self, now_s: float) -> list[Effect]:
        """Beat when it is time; end the connection when the server is silent for too long."""
        if self.state is SessionState.CLOSED:
            return []
        if now_s >= self.heard_at_s + self.read_idle_s:
            self.state = SessionState.CLOSED
            return [Close(f"the server was silent for {self.read_idle_s:.0f} s")]
        if self.state is SessionState.LIVE and now_s >= self.beat_at_s:
            self.sequence += 1
            self.beat_at_s = now_s + self.heartbeat_s
            return [Beat(self.sequence)]
        return []

    def next_deadline_s(self) -> float:
        """When `tick` must be called at the latest."""
        idle_at_s = self.heard_at_s + self.read_idle_s
        return min(idle_at_s, self.beat_at_s) if self.state is SessionState.LIVE else idle_at_s

    def _welcome(self, message: Welcome, now_s: float) -> list[Effect]:
        if self.state is SessionState.LIVE:
            self.dropped += 1
            return []
        refusal = self._term_refusal(message.term)
        if refusal:
            self.state = SessionState.CLOSED
            return [Close(refusal)]
        self.state = SessionState.LIVE
        self.session = message.session
        self.heartbeat_s = message.heartbeat_s
        self.read_idle_s = message.read_idle_s
        self.beat_at_s = now_s + message.heartbeat_s
        return [*self._take_term(message.term), Joined(message)]

    def _command(self, command: Command) -> list[Effect]:
        refusal = self._term_refusal(command.term)
        if refusal:
            ack = Ack(
                id=f"ack-{command.id}",
                session=self.session,
                re=command.id,
                is_accepted=False,
                code="stale_term",
                text=refusal,
            )
            return [Send(ack)]
        return [*self._take_term(command.term), Obey(command)]

    def _term_refusal(self, term: Term) -> str:
        if term.counter < self.term.counter:
            return f"term {term.counter} is over: this node has obeyed term {self.term.counter}"
        if term.counter == self.term.counter and self.term.leader_id not in ("", term.leader_id):
            return f"term {term.counter} has two leaders; this node obeys the first it heard"
        return ""

    def _take_term(self, term: Term) -> list[Effect]:
        if term == self.term:
            return []
        self.term = term
        return [Keep(term)]
