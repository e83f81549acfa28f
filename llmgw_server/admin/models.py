"""/api/v1/models: how each model stands, and why. Names may hold slashes, plain or encoded."""

from urllib.parse import unquote

from fastapi import APIRouter, Depends, Request

from llmgw_common.api.models import ExplainView, ModelView, Page
from llmgw_common.errors import LlmgwError
from llmgw_server.admin.paging import Cursor, Limit, page_of
from llmgw_server.admin.roles import control_plane, need
from llmgw_server.admin.views import explain_view, model_view

router = APIRouter(prefix="/api/v1/models", tags=["models"], dependencies=[Depends(need("viewer"))])


@router.get("", operation_id="list_models")
async def list_models(request: Request, cursor: Cursor = "", limit: Limit = 100) -> Page[ModelView]:
    """Return all models."""
    plane = control_plane(request)
    models = plane.catalog.catalog.models
    return page_of(models, lambda m: m.name, lambda m: model_view(m, plane), cursor, limit)


@router.get("/{name:path}/explain", operation_id="explain_model")
async def explain_model(request: Request, name: str) -> ExplainView:
    """Return why the model has what it has."""
    plane = control_plane(request)
    found = plane.explain(unquote(name))
    if found is None:
        raise _unknown(name)
    return explain_view(found, plane.clock)


@router.get("/{name:path}", operation_id="get_model")
async def get_model(request: Request, name: str) -> ModelView:
    """Return one model, by name or alias."""
    plane = control_plane(request)
    model = plane.catalog.catalog.model(unquote(name))
    if model is None:
        raise _unknown(name)
    return model_view(model, plane)


def _unknown(name: str) -> LlmgwError:
    return LlmgwError("not_found", f"there is no model {name[:200]!r} in the catalog")
