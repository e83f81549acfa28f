"""/api/v1/keys: who may call."""

from fastapi import APIRouter, Depends, Request, Response

from llmgw_common.api.models import KeyCreated, KeyRequest, KeyView, Page
from llmgw_server.admin.paging import Cursor, Limit, page_of
from llmgw_server.admin.roles import Admin, control_plane, need
from llmgw_server.admin.views import key_view

router = APIRouter(prefix="/api/v1/keys", tags=["keys"])


@router.get("", operation_id="list_keys", dependencies=[Depends(need("admin"))])
async def list_keys(request: Request, cursor: Cursor = "", limit: Limit = 100) -> Page[KeyView]:
    """Return all keys; no text of a key is kept, so none is shown."""
    keys = control_plane(request).keys.all()
    return page_of(keys, lambda k: k.record.key_id, key_view, cursor, limit)


@router.post("", operation_id="create_key", status_code=201)
async def create_key(
    request: Request,
    body: KeyRequest,
    caller: Admin,
) -> KeyCreated:
    """Make a key; its text is in this answer and nowhere else."""
    plane = control_plane(request)
    models = None if body.models is None else frozenset(body.models)
    key, text = await plane.keys.create(body.name, body.role, models, body.expires_in_s)
    plane.events.emit(
        "key",
        key.record.key_id,
        "created",
        f"key {body.name} of role {body.role} was made",
        actor=caller.name,
    )
    return KeyCreated(key=key_view(key), text=text)


@router.delete("/{key_id}", operation_id="revoke_key", status_code=204)
async def revoke_key(
    request: Request,
    key_id: str,
    caller: Admin,
) -> Response:
    """Disable a key; it stops working at once."""
    plane = control_plane(request)
    key = await plane.keys.revoke(key_id)
    plane.events.emit(
        "key", key_id, "revoked", f"key {key.record.name} was revoked", actor=caller.name
    )
    return Response(status_code=204)
