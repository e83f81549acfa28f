"""/api/v1/nodes and /api/v1/join-tokens: machines, and how they come in."""

from fastapi import APIRouter, Depends, Request, Response

from llmgw_common.api.models import JoinTokenCreated, JoinTokenRequest, NodeView, Page
from llmgw_common.errors import LlmgwError
from llmgw_server.admin.paging import Cursor, Limit, page_of
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.admin.roles import Admin, Operator, control_plane, need
from llmgw_server.admin.views import node_view
from llmgw_server.fleet.model import Node
from llmgw_server.gateway.auth import KeyRecord

router = APIRouter(prefix="/api/v1", tags=["nodes"])


@router.get("/nodes", operation_id="list_nodes", dependencies=[Depends(need("viewer"))])
async def list_nodes(request: Request, cursor: Cursor = "", limit: Limit = 100) -> Page[NodeView]:
    """Return all nodes."""
    plane = control_plane(request)
    fleet = plane.fleet()
    nodes = list(fleet.nodes.values())
    return page_of(
        nodes, lambda n: n.name, lambda n: node_view(n, fleet, plane.clock), cursor, limit
    )


@router.get("/nodes/{name}", operation_id="get_node", dependencies=[Depends(need("viewer"))])
async def get_node(request: Request, name: str) -> NodeView:
    """Return one node, by name or id."""
    plane = control_plane(request)
    return node_view(_find(plane, name), plane.fleet(), plane.clock)


@router.post("/nodes/{name}/cordon", operation_id="cordon_node")
async def cordon_node(
    request: Request,
    name: str,
    caller: Operator,
) -> NodeView:
    """Place nothing new on the node; what runs there goes on."""
    return await _cordon(control_plane(request), name, caller, is_cordoned=True)


@router.post("/nodes/{name}/uncordon", operation_id="uncordon_node")
async def uncordon_node(
    request: Request,
    name: str,
    caller: Operator,
) -> NodeView:
    """Let new work onto the node again."""
    return await _cordon(control_plane(request), name, caller, is_cordoned=False)


@router.delete("/nodes/{name}", operation_id="remove_node", status_code=204)
async def remove_node(
    request: Request,
    name: str,
    caller: Admin,
) -> Response:
    """Forget the node and revoke its credential; engines on it are no longer known here."""
    plane = control_plane(request)
    node = _find(plane, name)
    await plane.remove_node(node.node_id)
    plane.events.emit(
        "node", node.node_id, "removed", f"node {node.name} was removed", actor=caller.name
    )
    return Response(status_code=204)


@router.post("/join-tokens", operation_id="create_join_token", status_code=201)
async def create_join_token(
    request: Request,
    body: JoinTokenRequest,
    caller: Admin,
) -> JoinTokenCreated:
    """Make a join token; its text is in this answer and nowhere else."""
    plane = control_plane(request)
    token, text = await plane.enrollment.create_token(
        ttl_s=body.ttl_s, uses=body.uses, labels=body.labels
    )
    plane.events.emit(
        "join_token", token.token_id, "created", "a join token was made", actor=caller.name
    )
    return JoinTokenCreated(text=text, expires_at=token.expires_at, uses=token.uses_left)


async def _cordon(
    plane: ControlPlane, name: str, caller: KeyRecord, *, is_cordoned: bool
) -> NodeView:
    node = _find(plane, name)
    await plane.cordon(node.node_id, is_cordoned)
    code = "cordoned" if is_cordoned else "uncordoned"
    plane.events.emit("node", node.node_id, code, f"node {node.name} was {code}", actor=caller.name)
    return node_view(_find(plane, name), plane.fleet(), plane.clock)


def _find(plane: ControlPlane, wanted: str) -> Node:
    for node in plane.fleet().nodes.values():
        if wanted in (node.name, node.node_id):
            return node
    raise LlmgwError("not_found", f"there is no node {wanted[:100]!r}")
