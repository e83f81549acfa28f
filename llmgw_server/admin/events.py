"""/api/v1/events: what happened, and what happens now."""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from llmgw_common.api.models import EventView, Page
from llmgw_server.admin.paging import Limit
from llmgw_server.admin.roles import control_plane, need
from llmgw_server.admin.sse import stream
from llmgw_server.admin.views import event_view

Since = Annotated[int | None, Query(ge=0, le=2**53)]
_ID: Final = re.compile(r"[0-9]{1,15}")

router = APIRouter(prefix="/api/v1/events", tags=["events"], dependencies=[Depends(need("viewer"))])


@router.get("", operation_id="list_events", response_model=Page[EventView])
async def list_events(
    request: Request, since: Since = None, limit: Limit = 200, follow: bool = False
) -> Page[EventView] | Response:
    """Return events after the id `since`, oldest first; without it the newest.

    With `follow=1` it is a stream of server-sent events: those after `since` (without it, from now
    on), and then each as it happens; `Last-Event-ID` resumes it.
    """
    bus = control_plane(request).events
    if follow:
        last_id = request.headers.get("last-event-id", "")
        begin = int(last_id) if _ID.fullmatch(last_id) else since
        return stream(bus.follow(begin), event_view, lambda event: str(event.id))
    found = await bus.read(since, limit)
    cursor = str(found[-1].id) if len(found) == limit else ""
    return Page(items=tuple(event_view(event) for event in found), next=cursor)
