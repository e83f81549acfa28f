"""api.md: the routes of the admin API with the role that each needs, and the gateway's paths."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from docs.gen.markdown import code, table
from llmgw_server.admin.api import create_admin_api
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.admin.system import OPEN_PATHS
from llmgw_server.gateway.asgi import GENERATING


def page() -> str:
    """Return the page."""
    # Only the version is read when routes are made.
    app = create_admin_api(cast(ControlPlane, SimpleNamespace(version="")))
    rows = sorted(
        (code(method), code(path), _role(app, method, path), code(operation["operationId"]), text)
        for path, methods in app.openapi()["paths"].items()
        for method, operation in ((m.upper(), o) for m, o in methods.items())
        if (text := _first_line(operation.get("description", "")))
    )
    rows.sort(key=lambda row: (row[1], row[0]))
    paths = "\n".join(f"- `POST {path}`" for path in sorted(GENERATING))
    return "\n".join(
        (
            "# API",
            "",
            "A key is sent as `Authorization: Bearer KEY` or `x-api-key: KEY`. Keys have one of "
            "four roles: `client` opens the gateway only; `viewer`, `operator` and `admin` open "
            "the admin API, each with all that the one before may do; `admin` opens both.",
            "",
            "## Admin API",
            "",
            "Errors are problem documents (RFC 9457) with a stable `code`, see [Errors](errors.md)."
            " The OpenAPI 3.1 document is at `/api/v1/openapi.json`.",
            "",
            table(("method", "path", "role", "operation", "what it does"), rows),
            "## Gateway",
            "",
            "Bodies and answers are those of the OpenAI API, and of Anthropic's on `/v1/messages`;"
            " they reach the engine and come back as they are.",
            "",
            paths,
            "- `GET /v1/models`, `GET /v1/models/MODEL`",
        )
    )


def _role(app: FastAPI, method: str, path: str) -> str:
    if path in OPEN_PATHS:
        return "(open)"
    for route in _routes(app.routes):
        if route.path_format == path and method in (route.methods or ()):
            roles = [getattr(d.call, "role", "") for d in route.dependant.dependencies]
            return next((role for role in roles if role), "see [Metrics](metrics.md)")
    raise LookupError(f"no route {method} {path}")


def _routes(routes: Iterable[BaseRoute]) -> Iterable[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif included := getattr(route, "original_router", None):
            yield from _routes(included.routes)


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]
