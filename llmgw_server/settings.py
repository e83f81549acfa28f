"""server.yaml: what the owner of the server decides. Every key is documented here, once."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from llmgw_common.addresses import is_loopback
from llmgw_common.logs import LogFormat, LogLevel
from llmgw_common.tracing import TracingSettings
from llmgw_common.units import Bytes, Duration


class Block(BaseModel):
    """A block of settings: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GatewayBlock(Block):
    """The /v1 side.

    Attributes:
        auth: keys, or none (must be asked for; never together with a public address).
        max_body: largest request body, bytes.
        stop_grace: seconds that running requests get when the server stops.
    """

    auth: Literal["keys", "none"] = "keys"
    max_body: Bytes = 32 << 20
    stop_grace: Duration = 20.0


class ReconcileBlock(Block):
    """The reconciler's clocks (seconds).

    Attributes:
        interval: a pass runs at least so often.
        settling: after a start, wait so long for known nodes before placing anything.
        settling_stop: and so long before stopping what nobody claims.
        suspect_after: silence after which a node takes nothing new.
        lost_after: silence after which its replicas are replaced, unless their engines answer.
        failed_retention: how long ended replicas are kept for people to read.
    """

    interval: Duration = 5.0
    settling: Duration = 30.0
    settling_stop: Duration = 300.0
    suspect_after: Duration = 15.0
    lost_after: Duration = 60.0
    failed_retention: Duration = 600.0


class ChannelBlock(Block):
    """The agents' websocket (seconds)."""

    heartbeat: Duration = 5.0
    read_idle: Duration = 15.0
    ack: Duration = 5.0


class EventsBlock(Block):
    """The event log: how long it is kept (seconds)."""

    retention: Duration = 30 * 86400.0


class LogsBlock(Block):
    """How the program logs to stderr."""

    level: LogLevel = "info"
    format: LogFormat = "auto"


class TlsBlock(Block):
    """Certificate and key (PEM files) to serve TLS with."""

    certificate_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("give certificate_file and key_file together")
        return self


class ServerSettings(Block):
    """The whole of server.yaml.

    Attributes:
        listen: host:port of gateway, admin API and agent channel.
        data_dir: the server's own folder (database, lock).
        database_url: SQLAlchemy URL; SQLite in data_dir if absent.
        catalog_file: applied at the first start, while there is no catalog yet.
        insecure: serve plain text on an address that is not loopback (behind a TLS proxy, say).
        admin_key_file: where the first admin key is also written (mode 0600).
        bootstrap_admin_key_file: holds the text of the first admin key, instead of a made one.
        bootstrap_join_token_file: holds a join token that is valid while this file is configured.
        metrics_token: bearer token for /metrics; without one it answers to loopback and admin keys.
    """

    listen: str = Field(default="127.0.0.1:8000", pattern=r"^(\[[0-9a-fA-F:.]+\]|[^:\s]+):\d{1,5}$")
    data_dir: Path = Path("~/.local/share/llmgw/server")
    database_url: str = ""
    catalog_file: Path | None = None
    insecure: bool = False
    admin_key_file: Path | None = None
    bootstrap_admin_key_file: Path | None = None
    bootstrap_join_token_file: Path | None = None
    metrics_token: SecretStr = SecretStr("")
    tls: TlsBlock = TlsBlock()
    gateway: GatewayBlock = GatewayBlock()
    reconcile: ReconcileBlock = ReconcileBlock()
    channel: ChannelBlock = ChannelBlock()
    events: EventsBlock = EventsBlock()
    tracing: TracingSettings = TracingSettings()
    logs: LogsBlock = LogsBlock()

    @property
    def host(self) -> str:
        """The address to bind."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to bind."""
        return int(self.listen.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Nobody outside this machine can reach the address."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _public_means_protected(self) -> Self:
        if self.is_loopback:
            return self
        if self.gateway.auth == "none":
            raise ValueError(
                f"gateway.auth is none and {self.listen} is not loopback: anybody could use the "
                "GPUs; turn keys on or listen on 127.0.0.1"
            )
        if self.tls.certificate_file is None and not self.insecure:
            raise ValueError(
                f"{self.listen} is not loopback and there is no certificate: keys would cross the "
                "network in plain text; set tls.certificate_file and tls.key_file, or insecure: "
                "true if something in front does TLS"
            )
        return self
