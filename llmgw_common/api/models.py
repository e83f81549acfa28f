"""What the admin API sends and takes. Times are ISO 8601 UTC, sizes bytes, durations seconds."""

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
Role = Literal["admin", "operator", "viewer", "client"]


class View(BaseModel):
    """Anything that is shown; unknown fields of a newer server are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Page(View, Generic[Item]):
    """Part of a list; `next` is the cursor of the rest, empty at the end."""

    items: tuple[Item, ...]
    next: str = ""


class VersionView(View):
    """What runs here."""

    version: str
    server_id: str
    started_at: datetime


class ChangeView(View):
    """One field that a catalog changes; None is absent."""

    path: str
    before: str | None
    after: str | None


class ApplyRequest(BaseModel):
    """A catalog to put in force."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=4 << 20)
    file: str = ""
    if_revision: int | None = None
    dry_run: bool = False


class ApplyResult(View):
    """What an apply did, or with dry_run would do."""

    revision: int
    is_changed: bool
    changes: tuple[ChangeView, ...]


class CatalogView(View):
    """The catalog in force."""

    revision: int
    text: str
    applied_at: datetime | None
    actor: str


class RevisionView(View):
    """One revision of the catalog."""

    number: int
    applied_at: datetime
    actor: str
    changes: int


class GpuView(View):
    """A GPU, and what runs on it."""

    uuid: str
    index: int
    name: str
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    is_healthy: bool
    health_text: str
    replica_id: str = ""
    model: str = ""


class NodeView(View):
    """A node."""

    id: str
    name: str
    state: str
    since: datetime
    is_cordoned: bool
    labels: dict[str, str]
    addresses: tuple[str, ...]
    agent_version: str
    os: str
    arch: str
    cpu_count: int
    memory_total_bytes: int
    memory_free_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    gpus: tuple[GpuView, ...]
    gpu_note: str
    engine_kinds: tuple[str, ...]
    is_simulated: bool
    shards: int


class ShardView(View):
    """One node's part of a replica."""

    id: str
    rank: int
    node: str
    state: str
    since: datetime
    step: str
    pid: int | None
    port: int
    url: str
    gpu_indices: tuple[int, ...]
    fetch_done_bytes: int | None = None
    fetch_total_bytes: int | None = None
    error: str = ""
    error_kind: str = ""
    log_tail: tuple[str, ...] = ()


class TransitionView(View):
    """One line of a replica's story."""

    at: datetime
    before: str
    after: str
    why: str


class ReplicaView(View):
    """One running copy of a model."""

    id: str
    model: str
    profile: str
    engine: str
    state: str
    since: datetime
    created: datetime
    ready_since: datetime | None
    last_used: datetime | None
    node: str
    in_flight: int
    attempt: int
    is_adopted: bool
    freshness: Literal["fresh", "stale", "unknown"]
    reason: str
    error: str
    shards: tuple[ShardView, ...]
    story: tuple[TransitionView, ...]


class ModelView(View):
    """A model and how it stands."""

    name: str
    aliases: tuple[str, ...]
    kind: str
    source: str
    priority: int
    profiles: tuple[str, ...]
    min: int
    max: int
    wanted: int
    have: int
    ready: int
    waiting: int
    state: str
    why: str


class VerdictView(View):
    """One candidate that was turned down."""

    candidate: str
    profile: str
    code: str
    text: str
    facts: dict[str, str | int | float]


class ExplainView(View):
    """Why a model has what it has."""

    model: str
    wanted: int
    have: int
    ready: int
    lines: tuple[str, ...]
    missing: int
    reason_code: str
    reason: str
    verdicts: tuple[VerdictView, ...]
    retry_at: datetime | None


class EventView(View):
    """Something that happened."""

    id: int
    at: datetime
    object_kind: str
    object_id: str
    code: str
    text: str
    actor: str
    trace_id: str = ""
    facts: dict[str, str | int | float] = Field(default_factory=dict)


class KeyRequest(BaseModel):
    """A key to make."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")
    role: Role = "client"
    models: tuple[str, ...] | None = None
    expires_in_s: float | None = Field(default=None, gt=0, allow_inf_nan=False, le=10 * 365 * 86400)


class KeyView(View):
    """A key; its text is not kept anywhere."""

    id: str
    name: str
    role: Role
    models: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None
    is_disabled: bool


class KeyCreated(View):
    """A new key; the only time that its text is shown."""

    key: KeyView
    text: str


class JoinTokenRequest(BaseModel):
    """A join token to make."""

    model_config = ConfigDict(extra="forbid")

    ttl_s: float = Field(default=3600, gt=0, le=30 * 86400, allow_inf_nan=False)
    uses: int = Field(default=1, ge=1, le=10_000)
    labels: dict[str, str] = Field(default_factory=dict, max_length=32)


class JoinTokenCreated(View):
    """A new join token; the only time that its text is shown."""

    text: str
    expires_at: datetime
    uses: int


class LogLine(View):
    """One line of an engine's log, as sent over server-sent events."""

    text: str
