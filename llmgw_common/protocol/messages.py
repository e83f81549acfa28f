"""Every message of the control channel.

Agent to server: register, heartbeat, ack, shard_state, log_lines, command_result, going.
Server to agent: welcome, sync, heartbeat_ack, and the commands.

Rule 1: every message has a `type`, an `id` and the `session` it belongs to; commands also carry the
server's term, so that a deposed leader or a late frame of an old connection changes nothing.
Rule 2: a command is "make it so", idempotent by (shard id, epoch); never "if stopped then start".
Rule 3: `trace` is absent when tracing is off.
"""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_serializer

from llmgw_common.protocol.facts import NodeFacts, ShardReport, Wire

#: Versions of the protocol that this build speaks (lowest, highest).
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1


class Term(Wire):
    """One reign of a server: a rising counter and the random id of who reigns."""

    counter: int = 0
    leader_id: str = ""


class Message(Wire):
    """What all messages share. `session` 0 means: before the welcome."""

    id: str
    session: int = 0
    trace: dict[str, str] | None = None


class Command(Message):
    """What all commands share."""

    term: Term
    deadline_s: float = 60.0


# --- agent to server -----------------------------------------------------------------------------


class Register(Message):
    """First message of a connection: who I am, what I have, what runs here.

    Attributes:
        instance_id: random per agent process; tells a reconnect from a cloned credential.
        term_seen: highest term this agent ever obeyed; the server climbs above it.
        epochs_seen: highest epoch per replica id that this agent remembers.
    """

    type: Literal["register"] = "register"
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    agent_version: str
    instance_id: str
    node: NodeFacts
    engines: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    shards: tuple[ShardReport, ...] = ()
    term_seen: Term = Term()
    epochs_seen: dict[str, int] = Field(default_factory=dict)


class Heartbeat(Message):
    """Whole state again and again, so that a lost event heals."""

    type: Literal["heartbeat"] = "heartbeat"
    sequence: int
    shards: tuple[ShardReport, ...] = ()
    node: NodeFacts


class Ack(Message):
    """A command was accepted, or refused with the reason; sent within 5 s."""

    type: Literal["ack"] = "ack"
    re: str
    is_accepted: bool
    code: str = ""
    text: str = ""


class ShardStateEvent(Message):
    """One shard's whole status, sent when it changes and, while fetching, at most once a second."""

    type: Literal["shard_state"] = "shard_state"
    shard: ShardReport


class LogLines(Message):
    """Lines of an engine's log, answering tail_logs `re`; `is_last` ends the answer."""

    type: Literal["log_lines"] = "log_lines"
    re: str
    lines: tuple[str, ...] = ()
    is_last: bool = False
    error: str = ""


class CommandResult(Message):
    """The end of a longer command (prefetch, install_engine, delete_weights, run_probe)."""

    type: Literal["command_result"] = "command_result"
    re: str
    is_ok: bool
    text: str = ""


class Going(Message):
    """The agent is shutting down cleanly; engines stay."""

    type: Literal["going"] = "going"
    text: str = ""


# --- server to agent -----------------------------------------------------------------------------


class Welcome(Message):
    """Answer to register: the connection is a session from here on."""

    type: Literal["welcome"] = "welcome"
    node_id: str
    node_name: str
    term: Term
    protocol: int = PROTOCOL_MAX
    heartbeat_s: float = 5.0
    read_idle_s: float = 15.0
    frame_bytes_max: int = 1 << 20


class Sync(Message):
    """Which of the reported shards the server claims; sent once after the welcome.

    Unclaimed shards are only named here: the server ends them by stop_shard once it has settled.
    """

    type: Literal["sync"] = "sync"
    claimed: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()


class HeartbeatAck(Message):
    """Keeps the agent's read-idle limit quiet."""

    type: Literal["heartbeat_ack"] = "heartbeat_ack"
    sequence: int


class EngineSpec(Wire):
    """The engine a shard runs, as the catalog says."""

    name: str
    kind: str
    version: str
    install_pip: tuple[str, ...] = ()
    install_python: str = ""
    install_index: str = ""
    install_path: str = ""
    install_container: str = ""
    command: tuple[str, ...] = ()
    args: dict[str, str | int | float | bool | list[str] | None] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)


class StartShard(Command):
    """Start one shard. Answered with an ack; the rest comes as shard_state events.

    Attributes:
        args: the profile's engine arguments, over the engine's own.
        env: the profile's environment, over everything but what the node's owner refuses.
        secrets: values this start needs, by environment name; kept in memory only.
        port: HTTP port inside the node's band, chosen by the server; the agent may move on a clash.
        startup_timeout_s: the whole start must end within this, moved on by visible progress.
    """

    type: Literal["start_shard"] = "start_shard"
    shard_id: str
    replica_id: str
    epoch: int
    attempt: int = 0
    model: str
    served_model: str
    model_kind: str = "chat"
    source: str
    trust_remote_code: bool = False
    profile: str
    fingerprint: str
    engine: EngineSpec
    args: dict[str, str | int | float | bool | list[str] | None] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretStr] = Field(default_factory=dict)
    rank: int = 0
    wanted_shards: int = 1
    weight: float = 1.0
    fabric: str = ""
    pool: str = ""
    gpu_uuids: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    hcas: tuple[str, ...] = ()
    port: int
    startup_timeout_s: float = 1200.0

    @field_serializer("secrets", when_used="json")
    def _reveal_on_the_wire(self, value: dict[str, SecretStr]) -> dict[str, str]:
        return {name: secret.get_secret_value() for name, secret in value.items()}


class StopShard(Command):
    """End a shard: SIGTERM, `grace_s`, SIGKILL; the result comes as a shard_state event."""

    type: Literal["stop_shard"] = "stop_shard"
    shard_id: str
    replica_id: str
    epoch: int
    grace_s: float = 15.0
    text: str = ""


class DrainShard(Command):
    """Tell the engine, where it can be told, that no new work comes."""

    type: Literal["drain_shard"] = "drain_shard"
    shard_id: str
    replica_id: str
    epoch: int


class TailLogs(Command):
    """Send the last lines of a shard's engine log, and follow it if asked, until cancelled."""

    type: Literal["tail_logs"] = "tail_logs"
    shard_id: str
    lines: int = 200
    follow: bool = False
    cancel: str = ""


class Prefetch(Command):
    """Fetch weights ahead of a start."""

    type: Literal["prefetch"] = "prefetch"
    source: str


class CancelFetch(Command):
    """Stop a prefetch that nobody else waits for."""

    type: Literal["cancel_fetch"] = "cancel_fetch"
    source: str


class DeleteWeights(Command):
    """Delete weights that no shard uses."""

    type: Literal["delete_weights"] = "delete_weights"
    source: str


class InstallEngine(Command):
    """Install an engine ahead of a start."""

    type: Literal["install_engine"] = "install_engine"
    engine: EngineSpec


class RunProbe(Command):
    """Ask a shard's engine for one real token now."""

    type: Literal["run_probe"] = "run_probe"
    shard_id: str


AgentMessage = Annotated[
    Register | Heartbeat | Ack | ShardStateEvent | LogLines | CommandResult | Going,
    Field(discriminator="type"),
]
AnyCommand = (
    StartShard
    | StopShard
    | DrainShard
    | TailLogs
    | Prefetch
    | CancelFetch
    | DeleteWeights
    | InstallEngine
    | RunProbe
)
ServerMessage = Annotated[
    Welcome
    | Sync
    | HeartbeatAck
    | StartShard
    | StopShard
    | DrainShard
    | TailLogs
    | Prefetch
    | CancelFetch
    | DeleteWeights
    | InstallEngine
    | RunProbe,
    Field(discriminator="type"),
]
