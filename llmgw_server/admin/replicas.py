"""/api/v1/replicas: what runs, its story and its logs."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from llmgw_common.api.models import LogLine, Page, ReplicaView
from llmgw_common.errors import LlmgwError
from llmgw_server.admin.paging import Cursor, Limit, page_of
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.admin.roles import Operator, control_plane, need
from llmgw_server.admin.sse import stream
from llmgw_server.admin.views import replica_view
from llmgw_server.fleet.model import Replica, Shard

router = APIRouter(prefix="/api/v1/replicas", tags=["replicas"])

_LINES_MAX = 5000


@router.get("", operation_id="list_replicas", dependencies=[Depends(need("viewer"))])
async def list_replicas(
    request: Request, cursor: Cursor = "", limit: Limit = 100
) -> Page[ReplicaView]:
    """Return all replicas, ended ones for a while."""
    plane = control_plane(request)
    replicas = list(plane.fleet().replicas.values())
    return page_of(
        replicas, lambda r: r.replica_id, lambda r: replica_view(r, plane), cursor, limit
    )


@router.get("/{replica_id}", operation_id="get_replica", dependencies=[Depends(need("viewer"))])
async def get_replica(request: Request, replica_id: str) -> ReplicaView:
    """Return one replica, by its id or a shard's."""
    plane = control_plane(request)
    return replica_view(_find(plane, replica_id)[0], plane)


@router.get("/{replica_id}/logs", operation_id="get_replica_logs")
async def get_replica_logs(
    request: Request,
    replica_id: str,
    caller: Operator,
    lines: int = 200,
    follow: bool = False,
) -> StreamingResponse:
    """Stream lines of an engine's log as server-sent events; a shard's id picks the shard."""
    plane = control_plane(request)
    _, shard = _find(plane, replica_id)
    if shard is None:
        raise LlmgwError("not_found", f"replica {replica_id} has no shard")
    plane.events.emit(
        "replica", shard.replica_id, "logs_read", "engine log was read", actor=caller.name
    )
    limited = min(max(lines, 1), _LINES_MAX)
    found = plane.tail_logs(shard.node_id, shard.shard_id, limited, follow)
    first = await anext(found, None)
    return stream(_with_first(first, found), lambda text: LogLine(text=text))


async def _with_first(first: str | None, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """Begin with the line that was waited for, so that a refusal is still a proper status."""
    if first is not None:
        yield first
        async for line in rest:
            yield line


def _find(plane: ControlPlane, wanted: str) -> tuple[Replica, Shard | None]:
    for replica in plane.fleet().replicas.values():
        if replica.replica_id == wanted:
            return replica, replica.leader or next(iter(replica.shards), None)
        for shard in replica.shards:
            if shard.shard_id == wanted:
                return replica, shard
    raise LlmgwError("not_found", f"there is no replica or shard {wanted[:100]!r}")
