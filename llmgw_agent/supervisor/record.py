"""What survives the agent: one small JSON file a shard, written whole before and after its launch.

Rule 1: no launch without a durable record first (written, fsynced, renamed, folder fsynced).
Rule 2: a record that cannot be read is no record: nothing is guessed from it.
Rule 3: it holds the engine's access key, so it is readable by this user only.
"""

import os
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, field_serializer

from llmgw_common.protocol.messages import StartShard

log = structlog.get_logger(__name__)


class ShardRecord(BaseModel):
    """One shard's record.

    Attributes:
        pid: of the engine's main process, None before the launch.
        process_started: its start time in clock ticks since boot, from /proc.
        created_unix_s: wall time, as a restarted agent may have another monotonic zero.
        ready_unix_s: likewise; None if it never was ready.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: StartShard
    access_key: SecretStr
    host: str
    port: int
    boot_id: str
    pid: int | None = None
    process_started: int | None = None
    created_unix_s: float
    ready_unix_s: float | None = None

    @field_serializer("access_key", when_used="json")
    def _reveal_in_the_file(self, value: SecretStr) -> str:
        return value.get_secret_value()


class Records:
    """The records under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, record: ShardRecord) -> None:
        """Write a record so that it survives a power cut; blocking."""
        # Secrets of the catalog live in memory only; a restarted agent does not need them again.
        bare = record.model_copy(
            update={"command": record.command.model_copy(update={"secrets": {}})}
        )
        target = self._path(record.command.shard_id)
        staged = target.with_suffix(".new")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(bare.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        staged.rename(target)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, shard_id: str) -> None:
        """Forget a shard whose end is proven."""
        self._path(shard_id).unlink(missing_ok=True)

    def read_all(self) -> list[ShardRecord]:
        """Return every readable record."""
        found = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found.append(ShardRecord.model_validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                log.warning("record cannot be read; nothing is adopted from it", file=path.name)
        return found

    def _path(self, shard_id: str) -> Path:
        # Shard ids come from the server: only their plain characters reach a path.
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in shard_id)[:100]
        return self._folder / f"{safe}.json"
