"""One connection of an agent, as a sans-IO state machine: messages and time in, effects out.

    awaiting register --register--> registered --welcome()--> live --close--> closed

Rule 1: the first message is `register`, within the limit; everything else before it is a fault.
Rule 2: a message of another session number is dropped and counted.
Rule 3: a command without an ack within `ack_s` ends the session: a node that cannot be commanded
is never healthy. What happened to the command is settled by the next register.
Rule 4: silence longer than `read_idle_s` ends the session.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from llmgw_common.protocol.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Ack,
    AgentMessage,
    Command,
    CommandResult,
    Going,
    Heartbeat,
    HeartbeatAck,
    LogLines,
    Message,
    Register,
    ShardStateEvent,
    Sync,
    Welcome,
)

#: Commands that may wait for their ack at once (design: control plane protected).
COMMANDS_IN_FLIGHT_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Send:
    """Write this message to the agent."""

    message: Message


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection with this websocket code and text."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """The agent said something that the hub must know."""

    message: Register | Heartbeat | ShardStateEvent | LogLines | CommandResult | Going


@dataclass(frozen=True, slots=True)
class Acked:
    """The agent accepted or refused a command."""

    command: Command
    ack: Ack


Effect = Send | Close | Deliver | Acked


class SessionState(StrEnum):
    """Where a connection stands."""

    AWAITING_REGISTER = "awaiting_register"
    REGISTERED = "registered"
    LIVE = "live"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """The channel's clocks, in seconds (design: control channel; settings: `channel`)."""

    heartbeat_s: float = 5.0
    read_idle_s: float = 15.0
    ack_s: float = 5.0
    register_s: float = 10.0


@dataclass(slots=True)
class ServerSession:
    """The server's half of one connection.

    Attributes:
        session: number of this connection, unique in this server's life and carried by messages.
        dropped: messages of other sessions, and of unknown types, that changed nothing.
    """

    session: int
    limits: ChannelLimits
    new_id: Callable[[], str]
    opened_at_s: float
    state: SessionState = SessionState.AWAITING_REGISTER
    instance_id: str = ""
    heard_at_s: float = 0.0
    dropped: int = 0
    _waiting: dict[str, tuple[Command, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The connection has just opened: that counts as being heard."""
        self.heard_at_s = self.opened_at_s

    def receive(self, message: AgentMessage | None, now_s: float) -> list[Effect]:
        """Take a message (None: of an unknown type) and return what follows from it."""
        if self.state is SessionState.CLOSED:
            return []
        self.heard_at_s = now_s
        if message is None:
            self.dropped += 1
            return []
        if self.state is SessionState.AWAITING_REGISTER:
            return self._first(message)
        if message.session != self.session and not isinstance(message, Register):
            self.dropped += 1
            return []
        return self._live(message)

    def welcome(self, message: Welcome, sync: Sync) -> list[Effect]:
        """Answer the register: the connection is live from here on."""
        self.state = SessionState.LIVE
        return [Send(message), Send(sync)]

    def command(self, command: Command, now_s: float) -> list[Effect]:
        """Send a command and begin to wait for its ack."""
        if self.state is not SessionState.LIVE:
            return []
        if len(self._waiting) >= COMMANDS_IN_FLIGHT_MAX:
            return self._close(1013, f"{len(self._waiting)} commands wait for an ack")
        self._waiting[command.id] = (command, now_s + self.limits.ack_s)
        return [Send(command)]

    def tick(self, now_s: float) -> list[Effect]:
        """End the connection if a limit has passed."""
        if self.state is SessionState.CLOSED:
            return []
        if self.state is SessionState.AWAITING_REGISTER:
            if now_s >= self.opened_at_s + self.limits.register_s:
                return self._close(1008, f"no register within {self.limits.register_s:.0f} s")
            return []
        if now_s >= self.heard_at_s + self.limits.read_idle_s:
            return self._close(1001, f"silent for {self.limits.read_idle_s:.0f} s")
        late = [c for c, at_s in self._waiting.values() if now_s >= at_s]
        if late:
            kind = getattr(late[0], "type", "command")
            return self._close(1001, f"no ack of {kind} within {self.limits.ack_s:.0f} s")
        return []

    def next_deadline_s(self) -> float | None:
        """When `tick` must be called at the latest; None when closed."""
        if self.state is SessionState.CLOSED:
            return None
        if self.state is SessionState.AWAITING_REGISTER:
            return self.opened_at_s + self.limits.register_s
        idle_at_s = self.heard_at_s + self.limits.read_idle_s
        return min([idle_at_s, *(at_s for _, at_s in self._waiting.values())])

    def is_waiting_for(self, is_it: Callable[[Command], bool]) -> bool:
        """Say whether a command that `is_it` names still waits for its ack."""
        return any(is_it(command) for command, _ in self._waiting.values())

    def closed(self) -> None:
        """The connection is gone."""
        self.state = SessionState.CLOSED
        self._waiting.clear()

    def _first(self, message: AgentMessage) -> list[Effect]:
        if not isinstance(message, Register):
            return self._close(1008, f"{message.type} came before register")
        if message.protocol_max < PROTOCOL_MIN or message.protocol_min > PROTOCOL_MAX:
            text = (
                f"agent speaks protocol {message.protocol_min} to {message.protocol_max}, "
                f"this server {PROTOCOL_MIN} to {PROTOCOL_MAX}: upgrade the older one"
            )
            return self._close(1008, text)
        self.state = SessionState.REGISTERED
        self.instance_id = message.instance_id
        return [Deliver(message)]

    def _live(self, message: AgentMessage) -> list[Effect]:
        if isinstance(message, Register):
            return self._close(1008, "register came twice")
        if isinstance(message, Ack):
            waiting = self._waiting.pop(message.re, None)
            if waiting is None:
                self.dropped += 1
                return []
            return [Acked(waiting[0], message)]
        if isinstance(message, Heartbeat):
            answer = HeartbeatAck(id=self.new_id(), session=self.session, sequence=message.sequence)
            return [Deliver(message), Send(answer)]
        return [Deliver(message)]

    def _close(self, code: int, text: str) -> list[Effect]:
        self.closed()
        return [Close(code, text)]
