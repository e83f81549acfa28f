"""What an agent tells about its machine and about every shard that it runs.

A server treats all of this as untrusted: addresses, ports and shard ids are checked against what
the node was enrolled with.
"""

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_serializer

from llmgw_common.states import ShardState


class Wire(BaseModel):
    """Anything that crosses the channel: frozen, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class GpuFacts(Wire):
    """One GPU, named by UUID. Every field but the UUID may be unknown."""

    uuid: str
    index: int = -1
    name: str = ""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    is_healthy: bool = True
    health_text: str = ""
    temperature_celsius: float | None = None
    utilization_percent: float | None = None
    numa_node: int | None = None
    pci_bus: str = ""


class NodeFacts(Wire):
    """The machine.

    Attributes:
        addresses: data addresses under which engines here may be reached, the preferred first.
        port_low: first port of the band that engines on this node may listen on.
        port_high: last port of that band (inclusive).
        engine_kinds: engine kinds the node's owner allows here.
        is_simulated: the inventory was made up by configuration.
    """

    host: str
    addresses: tuple[str, ...]
    boot_id: str
    os: str = ""
    arch: str = ""
    cpu_count: int = 1
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    gpus: tuple[GpuFacts, ...] = ()
    gpu_note: str = ""
    driver: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    port_low: int = 20000
    port_high: int = 24999
    engine_kinds: tuple[str, ...] = ()
    is_simulated: bool = False


class FetchProgress(Wire):
    """Bytes of weights present of bytes wanted; total 0 means the source did not say."""

    source: str
    bytes_done: int = 0
    bytes_total: int = 0


class ShardError(Wire):
    """Why a shard failed, as the node saw it.

    Attributes:
        step: install, fetch, launch, await_ready, watch or stop.
        kind: exit class, such as out_of_memory, port_taken, bad_argument, killed, unknown.
        exit_code: the process's exit code, None if it did not exit by itself.
        signal: the signal that ended it, None if none did.
        log_tail: last lines of the engine's log (at most 50), secrets masked.
    """

    step: str
    kind: str = "unknown"
    text: str
    exit_code: int | None = None
    signal: int | None = None
    log_tail: tuple[str, ...] = ()


class ShardReport(Wire):
    """The whole status of one shard, with all that a server needs to adopt it without a memory.

    Attributes:
        epoch: number of the start attempt; a newer one wins.
        access_key: the key that the engine wants from the gateway (secret).
        url: base URL of the engine's HTTP server, once its port is known.
        since_s: seconds in this state.
        created_s: seconds since the start command was accepted.
        ready_s: seconds since it became ready, None if it never was.
    """

    shard_id: str
    replica_id: str
    model: str
    profile: str
    fingerprint: str = ""
    engine: str = ""
    engine_kind: str = ""
    served_model: str = ""
    fabric: str = ""
    pool: str = ""
    rank: int = 0
    wanted_shards: int = 1
    weight: float = 1.0
    epoch: int
    attempt: int = 0
    state: ShardState
    since_s: float = 0.0
    created_s: float = 0.0
    ready_s: float | None = None
    gpu_uuids: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    hcas: tuple[str, ...] = ()
    port: int = 0
    url: str = ""
    access_key: SecretStr = SecretStr("")
    pid: int | None = None
    is_adopted: bool = False
    step_text: str = ""
    fetch: FetchProgress | None = None
    error: ShardError | None = None

    @field_serializer("access_key", when_used="json")
    def _reveal_on_the_wire(self, value: SecretStr) -> str:
        return value.get_secret_value()
