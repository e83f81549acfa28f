"""Engines: which inference server, which version, and how a node comes by it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from llmgw_common.documents.sections import ArgValue, EnvName, Name, Section

EngineKind = Literal["vllm", "sglang", "llama_cpp", "simulated", "command"]


class Install(Section):
    """How a node comes by the engine: at most one of pip, path and container.

    Attributes:
        pip: exact requirements (name==version), installed into a virtual environment of their own.
        python: version for that environment, the agent's own if absent.
        index: the one package index to install from, the agent's first allowed one if absent.
        path: a program that is on the node already; checked, never changed.
        container: an image, by digest.
    """

    pip: list[str] = Field(default_factory=list)
    python: str | None = None
    index: str | None = None
    path: str | None = None
    container: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [w for w in ("pip", "path", "container") if getattr(self, w)]
        if len(ways) > 1:
            raise ValueError(f"give one of pip, path and container, not {' and '.join(ways)}")
        for requirement in self.pip:
            if "==" not in requirement or requirement.startswith("-"):
                raise ValueError(f"{requirement!r} is not exact: write it like vllm==0.33.0")
        if self.container and "@sha256:" not in self.container:
            raise ValueError("name the container by digest: image@sha256:...")
        return self


class Engine(Section):
    """An inference server program and version.

    Attributes:
        args: arguments for every profile that uses it; a profile's own win.
        env: environment likewise.
        command: for kind `command`, the argv; {port}, {host} and {model_path} are filled in.
    """

    name: Name
    kind: EngineKind
    version: str = Field(default="", max_length=100)
    install: Install = Install()
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[EnvName, str] = Field(default_factory=dict)
    command: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _command_needs_argv(self) -> Self:
        if (self.kind == "command") != bool(self.command):
            raise ValueError("`command` belongs to engines of kind command, and those need it")
        return self
