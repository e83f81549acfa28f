"""A typed client of the admin API, for the command line, the demo and people's scripts."""

import json
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from llmgw_common.api.models import (
    ApplyRequest,
    ApplyResult,
    CatalogView,
    EventView,
    ExplainView,
    JoinTokenCreated,
    JoinTokenRequest,
    KeyCreated,
    KeyRequest,
    KeyView,
    LogLine,
    ModelView,
    NodeView,
    Page,
    ReplicaView,
    RevisionView,
    VersionView,
)
from llmgw_common.api.problem import Problem

Body = TypeVar("Body", bound=BaseModel)


class ApiError(Exception):
    """The server refused; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem


class ApiClient:
    """One server, one key. Use as a context manager.

    Raises from every call: ApiError (the server refused), httpx.TransportError (not reachable).
    """

    def __init__(self, server: str, key: str, timeout_s: float = 30.0) -> None:
        self._client = httpx.Client(
            base_url=server.rstrip("/"),
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
        )

    def __enter__(self) -> "ApiClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # --- catalog ---------------------------------------------------------------------------------

    def apply(self, request: ApplyRequest) -> ApplyResult:
        """Put a catalog in force, or only check it (dry_run)."""
        return self._send("PUT", "/catalog", request, ApplyResult)

    def catalog(self) -> CatalogView:
        """Return the catalog in force."""
        return self._get("/catalog", CatalogView)

    def revisions(self) -> tuple[RevisionView, ...]:
        """Return the catalog's revisions, newest first."""
        return self._all("/catalog/revisions", RevisionView)

    # --- fleet -----------------------------------------------------------------------------------

    def models(self) -> tuple[ModelView, ...]:
        """Return all models."""
        return self._all("/models", ModelView)

    def model(self, name: str) -> ModelView:
        """Return one model, by name or alias."""
        return self._get(f"/models/{quote(name)}", ModelView)

    def explain(self, name: str) -> ExplainView:
        """Return why a model has what it has."""
        return self._get(f"/models/{quote(name)}/explain", ExplainView)

    def replicas(self) -> tuple[ReplicaView, ...]:
        """Return all replicas."""
        return self._all("/replicas", ReplicaView)

    def replica(self, replica_id: str) -> ReplicaView:
        """Return one replica, or that of a shard."""
        return self._get(f"/replicas/{quote(replica_id, safe='')}", ReplicaView)

    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes."""
        return self._all("/nodes", NodeView)

    def node(self, name: str) -> NodeView:
        """Return one node, by name or id."""
        return self._get(f"/nodes/{quote(name, safe='')}", NodeView)

    def cordon(self, name: str, *, is_cordoned: bool) -> NodeView:
        """Close a node to new work, or open it again."""
        verb = "cordon" if is_cordoned else "uncordon"
        return self._send("POST", f"/nodes/{quote(name, safe='')}/{verb}", None, NodeView)

    def remove_node(self, name: str) -> None:
        """Forget a node and revoke its credential."""
        self._checked(self._client.delete(f"/api/v1/nodes/{quote(name, safe='')}"))

    def logs(self, replica_id: str, *, lines: int, follow: bool) -> Iterator[str]:
        """Yield lines of an engine's log; with `follow` until the caller stops."""
        params = {"lines": lines, "follow": int(follow)}
        path = f"/replicas/{quote(replica_id, safe='')}/logs"
        for payload in self._stream(path, params):
            yield LogLine.model_validate(payload).text

    # --- events, keys, tokens --------------------------------------------------------------------

    def events(self, *, since: int | None = None, limit: int = 200) -> tuple[EventView, ...]:
        """Return events after the id `since`, oldest first; without it, the newest ones."""
        params = {"limit": limit} if since is None else {"limit": limit, "since": since}
        return self._get_page("/events", EventView, params).items

    def follow_events(self, since: int) -> Iterator[EventView]:
        """Yield events after the id `since` as they happen, until the caller stops."""
        for payload in self._stream("/events", {"since": since, "follow": 1}):
            yield EventView.model_validate(payload)

    def create_key(self, request: KeyRequest) -> KeyCreated:
        """Make a key; its text is in the answer and nowhere else."""
        return self._send("POST", "/keys", request, KeyCreated)

    def keys(self) -> tuple[KeyView, ...]:
        """Return all keys, without their texts."""
        return self._all("/keys", KeyView)

    def revoke_key(self, key_id: str) -> None:
        """Disable a key at once."""
        self._checked(self._client.delete(f"/api/v1/keys/{quote(key_id, safe='')}"))

    def create_join_token(self, request: JoinTokenRequest) -> JoinTokenCreated:
        """Make a join token; its text is in the answer and nowhere else."""
        return self._send("POST", "/join-tokens", request, JoinTokenCreated)

    def version(self) -> VersionView:
        """Return what runs there."""
        return self._get("/version", VersionView)

    # --- inside ----------------------------------------------------------------------------------

    def _get(self, path: str, kind: type[Body]) -> Body:
        answer = self._checked(self._client.get(f"/api/v1{path}"))
        return kind.model_validate(answer.json())

    def _get_page(self, path: str, kind: type[Body], params: dict[str, Any]) -> Page[Body]:
        answer = self._checked(self._client.get(f"/api/v1{path}", params=params))
        return Page[kind].model_validate(answer.json())  # type: ignore[valid-type]

    def _all(self, path: str, kind: type[Body]) -> tuple[Body, ...]:
        found: list[Body] = []
        cursor = ""
        while True:
            page = self._get_page(path, kind, {"cursor": cursor, "limit": 500})
            found.extend(page.items)
            cursor = page.next
            if not cursor:
                return tuple(found)

    def _send(self, method: str, path: str, body: BaseModel | None, kind: type[Body]) -> Body:
        content = body.model_dump(mode="json") if body else None
        answer = self._checked(self._client.request(method, f"/api/v1{path}", json=content))
        return kind.model_validate(answer.json())

    def _stream(self, path: str, params: dict[str, Any]) -> Iterator[Any]:
        timeout = httpx.Timeout(30.0, read=60.0)
        url = f"/api/v1{path}"
        with self._client.stream("GET", url, params=params, timeout=timeout) as answer:
            if answer.is_error:
                answer.read()
            self._checked(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    @staticmethod
    def _checked(answer: httpx.Response) -> httpx.Response:
        if not answer.is_error:
            return answer
        try:
            problem = Problem.model_validate(answer.json())
        except (ValueError, ValidationError):
            problem = Problem(
                title=f"The server answered {answer.status_code}", status=answer.status_code
            )
        raise ApiError(problem)
