"""Who may call what: every route names its role, and a test walks the routes to see that it does.

viewer < operator < admin. A gateway key (role client) opens nothing here.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Request

from llmgw_common.errors import LlmgwError
from llmgw_server.access.keys import ApiKeys
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.gateway.auth import (
    UNAUTHENTICATED,
    ConflictingKeysError,
    KeyRecord,
    credential_of,
)

AdminRole = Literal["viewer", "operator", "admin"]

_RANKS: Final = {"client": 0, "viewer": 1, "operator": 2, "admin": 3}

Dependency = Callable[[Request], Coroutine[Any, Any, KeyRecord]]


def control_plane(request: Request) -> ControlPlane:
    """Return the server that a request came to."""
    found: ControlPlane = request.app.state.control_plane
    return found


def need(role: AdminRole) -> Dependency:
    """Return a dependency that gives the caller's key if it has at least `role`."""

    async def caller(request: Request) -> KeyRecord:
        record = authenticated(request)
        if _RANKS[record.role] < _RANKS[role]:
            text = f"this needs a key of role {role}; yours is of role {record.role}"
            raise LlmgwError("forbidden", text)
        return record

    caller.role = role  # type: ignore[attr-defined]
    return caller


#: The caller's key in a route that needs this role at least.
Operator = Annotated[KeyRecord, Depends(need("operator"))]
Admin = Annotated[KeyRecord, Depends(need("admin"))]


def authenticated(request: Request) -> KeyRecord:
    """Return the caller's key; see `key_of`."""
    return key_of(request.scope["headers"], control_plane(request).keys)


def key_of(headers: Iterable[tuple[bytes, bytes]], keys: ApiKeys) -> KeyRecord:
    """Return the key that a request's headers (lower-case names) hold.

    Raises:
        LlmgwError: `unauthenticated`, with one text for every kind of no; `bad_request` for two
            different keys.
    """
    found: dict[bytes, list[str]] = {b"authorization": [], b"x-api-key": []}
    for name, value in headers:
        if name in found:
            found[name].append(value.decode("latin-1"))
    try:
        credential = credential_of(found[b"authorization"], found[b"x-api-key"])
    except ConflictingKeysError as error:
        text = "Authorization and x-api-key hold different keys; send one"
        raise LlmgwError("bad_request", text) from error
    record = keys.find(credential) if credential else None
    if record is None:
        raise LlmgwError("unauthenticated", UNAUTHENTICATED)
    return record
