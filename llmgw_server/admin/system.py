"""Health, readiness, metrics and version. The first two are open and say nothing but yes or no."""

import hmac

from fastapi import APIRouter, Depends, Request, Response

from llmgw_common.addresses import is_loopback
from llmgw_common.api.models import VersionView
from llmgw_common.errors import LlmgwError
from llmgw_server.admin.roles import authenticated, control_plane, need

router = APIRouter(tags=["system"])

#: Paths that need no key: they are for load balancers.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})


@router.get("/healthz", operation_id="healthz")
async def healthz() -> dict[str, str]:
    """Answer 200 while the process runs."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="readyz")
async def readyz(request: Request) -> dict[str, str]:
    """Answer 200 when requests can be served and writes be kept, else 503."""
    await control_plane(request).is_ready()
    return {"status": "ready"}


async def _may_scrape(request: Request) -> None:
    """Let in the metrics token, a loopback caller while no token is set, or any admin API key."""
    plane = control_plane(request)
    sent = request.headers.get("authorization", "").removeprefix("Bearer ")
    if plane.metrics_token:
        if hmac.compare_digest(sent.encode(), plane.metrics_token.encode()):
            return
    elif request.client and is_loopback(request.client.host):
        return
    if authenticated(request).role == "client":
        raise LlmgwError("forbidden", "metrics are not for gateway keys")


@router.get("/metrics", operation_id="metrics", dependencies=[Depends(_may_scrape)])
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    text = control_plane(request).metrics()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/api/v1/version", operation_id="version", dependencies=[Depends(need("viewer"))])
async def version(request: Request) -> VersionView:
    """Return what runs here."""
    plane = control_plane(request)
    return VersionView(
        version=plane.version, server_id=plane.server_id, started_at=plane.started_at
    )
