"""One shard's status, and how it may move. Pure: the time comes in.

    pending -> installing -> fetching -> starting -> loading -> ready
    any of these -> stopping -> stopped,  any of these -> failed

Rule 1: nothing leaves stopped; failed becomes stopped only when a stop was asked for.
Rule 2: bytes of weights are shown only while fetching, and never go back.
Rule 3: within an epoch a start runs once; a command of an older epoch changes nothing.
"""

from dataclasses import dataclass, replace

from pydantic import SecretStr

from llmgw_common.protocol.facts import FetchProgress, ShardError, ShardReport
from llmgw_common.protocol.messages import StartShard
from llmgw_common.states import SHARD_MOVES, ShardState


class InvalidMoveError(Exception):
    """A move that the table does not know: a bug here, not somebody's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """What the agent knows of a shard; times are monotonic seconds of this agent."""

    command: StartShard
    access_key: SecretStr
    state: ShardState
    since_at_s: float
    created_at_s: float
    ready_at_s: float | None = None
    host: str = ""
    port: int = 0
    pid: int | None = None
    is_adopted: bool = False
    step_text: str = ""
    fetch: FetchProgress | None = None
    error: ShardError | None = None

    @property
    def is_over(self) -> bool:
        """Stopped or failed."""
        return self.state in (ShardState.STOPPED, ShardState.FAILED)


def moved(status: ShardStatus, state: ShardState, now_s: float, step_text: str = "") -> ShardStatus:
    """Return the status in `state`.

    Raises:
        InvalidMoveError: the table does not allow the move.
    """
    if state not in SHARD_MOVES[status.state]:
        raise InvalidMoveError(f"{status.command.shard_id}: {status.state} cannot become {state}")
    ready_at_s = now_s if state is ShardState.READY else status.ready_at_s
    return replace(
        status,
        state=state,
        since_at_s=now_s if state is not status.state else status.since_at_s,
        ready_at_s=ready_at_s,
        step_text=step_text,
        fetch=status.fetch if state is ShardState.FETCHING else None,
    )


def fetched(status: ShardStatus, done: int, total: int) -> ShardStatus:
    """Return the status with more bytes of weights; a smaller number than before is ignored."""
    if status.state is not ShardState.FETCHING:
        return status
    before = status.fetch.bytes_done if status.fetch else 0
    done = max(before, min(done, total) if total else done)
    progress = FetchProgress(source=status.command.source, bytes_done=done, bytes_total=total)
    return replace(status, fetch=progress)


def failed(status: ShardStatus, error: ShardError, now_s: float) -> ShardStatus:
    """Return the status as failed; the first error stays."""
    if status.is_over:
        return status
    return replace(moved(status, ShardState.FAILED, now_s), error=status.error or error, pid=None)


def report(status: ShardStatus, now_s: float) -> ShardReport:
    """Return what the server is told: ages instead of instants."""
    command = status.command
    has_url = status.host and status.port and command.rank == 0
    return ShardReport(
        shard_id=command.shard_id,
        replica_id=command.replica_id,
        model=command.model,
        profile=command.profile,
        fingerprint=command.fingerprint,
        engine=command.engine.name,
        engine_kind=command.engine.kind,
        served_model=command.served_model,
        fabric=command.fabric,
        pool=command.pool,
        rank=command.rank,
        wanted_shards=command.wanted_shards,
        weight=command.weight,
        epoch=command.epoch,
        attempt=command.attempt,
        state=status.state,
        since_s=max(now_s - status.since_at_s, 0.0),
        created_s=max(now_s - status.created_at_s, 0.0),
        ready_s=None if status.ready_at_s is None else max(now_s - status.ready_at_s, 0.0),
        gpu_uuids=command.gpu_uuids,
        gpu_indices=command.gpu_indices,
        hcas=command.hcas,
        port=status.port,
        url=f"http://{status.host}:{status.port}" if has_url else "",
        access_key=status.access_key,
        pid=status.pid,
        is_adopted=status.is_adopted,
        step_text=status.step_text,
        fetch=status.fetch,
        error=status.error,
    )
