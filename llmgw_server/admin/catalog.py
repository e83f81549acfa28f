"""/api/v1/catalog: what is wanted, and its revisions."""

import re
from typing import Final

from fastapi import APIRouter, Depends, Request, Response

from llmgw_common.api.models import (
    ApplyRequest,
    ApplyResult,
    CatalogView,
    ChangeView,
    Page,
    RevisionView,
)
from llmgw_common.documents.diff import Change
from llmgw_common.errors import LlmgwError
from llmgw_server.admin.roles import Admin, control_plane, need

_REVISION: Final = re.compile(r"[0-9]{1,15}")

router = APIRouter(prefix="/api/v1/catalog", tags=["catalog"])


@router.get("", operation_id="get_catalog", dependencies=[Depends(need("viewer"))])
async def get_catalog(request: Request, response: Response) -> CatalogView:
    """Return the catalog in force; the ETag is its revision."""
    catalog = control_plane(request).catalog
    revision = catalog.revision
    response.headers["etag"] = f'"{catalog.number}"'
    return CatalogView(
        revision=catalog.number,
        text=revision.text if revision else "",
        applied_at=revision.at if revision else None,
        actor=revision.actor if revision else "",
    )


@router.put("", operation_id="apply_catalog")
async def apply_catalog(
    request: Request,
    body: ApplyRequest,
    caller: Admin,
    dry_run: bool = False,
    if_revision: int | None = None,
) -> ApplyResult:
    """Put a catalog in force, all of it or nothing; with dry_run only tell what would change.

    `dry_run` and `if_revision` may stand in the body or in the query; If-Match works, too.
    """
    plane = control_plane(request)
    if body.dry_run or dry_run:
        changes = await plane.catalog.preview(body.text, body.file)
        return _result(plane.catalog.number, changes, is_changed=False)
    expected = body.if_revision if body.if_revision is not None else if_revision
    if expected is None:
        expected = _if_match(request)
    applied = await plane.catalog.apply(
        body.text, file=body.file, actor=caller.name, if_revision=expected
    )
    if applied.is_changed:
        text = f"catalog revision {applied.number}: {len(applied.changes)} changes"
        plane.events.emit("catalog", str(applied.number), "applied", text, actor=caller.name)
    return _result(applied.number, applied.changes, is_changed=applied.is_changed)


@router.get("/revisions", operation_id="list_revisions", dependencies=[Depends(need("viewer"))])
async def list_revisions(request: Request, limit: int = 100) -> Page[RevisionView]:
    """Return the newest revisions, newest first."""
    found = await control_plane(request).catalog.history(min(max(limit, 1), 1000))
    return Page(
        items=tuple(
            RevisionView(number=r.number, applied_at=r.at, actor=r.actor, changes=r.changes)
            for r in found
        )
    )


def _result(number: int, changes: list[Change], *, is_changed: bool) -> ApplyResult:
    shown = tuple(ChangeView(path=c.path, before=c.before, after=c.after) for c in changes)
    return ApplyResult(revision=number, is_changed=is_changed, changes=shown)


def _if_match(request: Request) -> int | None:
    text = request.headers.get("if-match", "").strip().strip('"')
    if not text or text == "*":
        return None
    if not _REVISION.fullmatch(text):
        raise LlmgwError("bad_request", "If-Match must be the catalog's ETag, a revision number")
    return int(text)
