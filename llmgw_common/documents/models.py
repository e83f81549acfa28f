"""Models: the names clients ask for, and the profiles by which they run."""

import hashlib
import json
import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llmgw_common.documents.engines import Engine
from llmgw_common.documents.sections import ArgValue, EnvName, ModelNameText, Name, Section
from llmgw_common.documents.source import HubSource, parse_source
from llmgw_common.units import Bytes, Duration

ModelKind = Literal["chat", "completion", "embedding", "rerank", "transcription", "image"]


_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def _check_source(text: str) -> str:
    parse_source(text)
    return text


class Scaling(Section):
    """How many replicas, by demand.

    Attributes:
        min: at least so many; 0 makes the model on-demand.
        max: at most so many; `min`, but at least 1, if absent.
        target_in_flight: running requests a replica above which another is wanted.
        idle_timeout: seconds without a request after which an on-demand model stops.
        scale_down_delay: seconds of less demand before a replica goes.
        min_lifetime: seconds that a replica stays once it is ready.
    """

    min: int = Field(default=1, ge=0, le=1000)
    max: int = Field(default=0, ge=0, le=1000)
    target_in_flight: int = Field(default=32, ge=1)
    idle_timeout: Duration = 900.0
    scale_down_delay: Duration = 300.0
    min_lifetime: Duration = 120.0

    @model_validator(mode="after")
    def _max_is_not_below_min(self) -> Self:
        if self.max and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    @property
    def most(self) -> int:
        """The upper bound in force."""
        return self.max or max(self.min, 1)


class Limits(Section):
    """How long and how many requests may wait (durations in seconds)."""

    max_queue: int = Field(default=200, ge=0)
    max_wait: Duration = 120.0
    first_byte: Duration = 60.0
    between_bytes: Duration = 30.0


class Profile(Section):
    """One hardware recipe for a model.

    Attributes:
        gpus: GPUs a shard; 0 is CPU only.
        gpu_memory: least total memory of each card, in bytes.
        gpu_share: memory of a shared card that a shard takes, in bytes.
        shards: nodes that one replica spans.
        fabric: the fabric to span them over, or "any".
        host_memory: host memory that must be free, in bytes.
        weight: capacity beside other profiles.
        startup_timeout: seconds a start may stand still before it fails.
        launch_grace: seconds in which a launch must show life.
        drain_timeout: seconds that running requests get when a replica leaves.
    """

    name: Name
    engine: Name
    pool: Name | None = None
    gpus: int = Field(default=1, ge=0, le=64)
    gpu_memory: Bytes | None = None
    gpu_share: Bytes | None = None
    shards: int = Field(default=1, ge=1, le=512)
    fabric: Name | None = None
    host_memory: Bytes | None = None
    args: dict[str, ArgValue] = Field(default_factory=dict)
    env: dict[EnvName, str] = Field(default_factory=dict)
    weight: float = Field(default=1.0, gt=0, le=1000)
    startup_timeout: Duration = 1200.0
    launch_grace: Duration = 120.0
    drain_timeout: Duration = 60.0

    def fingerprint(self, engine: Engine, model: "Model") -> str:
        """Return a hash of all that decides what runs (16 hex digits).

        Weight, time-outs and placement wishes change nothing about a running engine: they are left
        out, so that editing them makes no replica stale.
        """
        content = {
            "source": model.source,
            "trust_remote_code": model.trust_remote_code,
            "kind": model.kind,
            "engine": engine.model_dump(mode="json"),
            "gpus": self.gpus,
            "gpu_share": self.gpu_share,
            "shards": self.shards,
            "args": self.args,
            "env": self.env,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Model(Section):
    """A name that clients ask for.

    Attributes:
        priority: higher ones are placed first and may push out lower ones.
        pinned: never evicted.
        trust_remote_code: the repository's own code may run (needs a pinned revision).
        secret: name of a stored secret for the source.
        fallbacks: models to try when this one has no capacity.
        profiles: recipes in order of preference.
    """

    name: ModelNameText
    aliases: list[ModelNameText] = Field(default_factory=list)
    source: Annotated[str, AfterValidator(_check_source)] = "none:"
    kind: ModelKind = "chat"
    priority: int = Field(default=0, ge=-1000, le=1000)
    pinned: bool = False
    trust_remote_code: bool = False
    secret: Name | None = None
    fallbacks: list[ModelNameText] = Field(default_factory=list)
    scaling: Scaling = Scaling()
    limits: Limits = Limits()
    profiles: list[Profile] = Field(min_length=1)

    @model_validator(mode="after")
    def _remote_code_is_pinned(self) -> Self:
        source = parse_source(self.source)
        is_pinned = not isinstance(source, HubSource) or _COMMIT.fullmatch(source.revision)
        if self.trust_remote_code and not is_pinned:
            raise ValueError(
                "trust_remote_code runs the repository's code, so it needs a pinned commit: "
                "hf://ORG/NAME@<40 hex digits>; a branch or tag can be moved"
            )
        return self

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name."""
        return next((profile for profile in self.profiles if profile.name == name), None)
