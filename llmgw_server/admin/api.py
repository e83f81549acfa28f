"""Assembles the admin API; its documentation is behind a key like everything else."""

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from llmgw_server.admin import (
    catalog,
    events,
    keys,
    models,
    nodes,
    problem,
    replicas,
    system,
)
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.admin.roles import need


def create_admin_api(plane: ControlPlane) -> FastAPI:
    """Return the FastAPI application of /api/v1, /healthz, /readyz and /metrics."""
    app = FastAPI(
        title="llmgw",
        version=plane.version,
        summary="Runs language models on your GPU machines.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.control_plane = plane
    problem.install(app)
    for room in (system, catalog, models, replicas, nodes, events, keys):
        app.include_router(room.router)

    @app.get("/api/v1/openapi.json", dependencies=[Depends(need("viewer"))])
    async def openapi(request: Request) -> JSONResponse:
        """Return the OpenAPI document of this API."""
        return JSONResponse(app.openapi())

    return app
