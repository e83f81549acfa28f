"""Requests that wait for a model with no ready replica: a bounded queue a model.

Rule 1: all waiters of a model join one start; the queue is the demand that the planner reads.
Rule 2: a model that cannot be placed answers at once, with the reason, not after the wait.
Rule 3: who leaves the queue, by whatever way, gives its place back.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from llmgw_server.gateway.errors import Refusal
from llmgw_server.gateway.table import ModelRoute, RouteTable

#: What Retry-After says while a start is under way (seconds).
_RETRY_S: Final = 10


class Admission:
    """Holds the waiters."""

    def __init__(self, on_demand: Callable[[], None]) -> None:
        self._on_demand = on_demand
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> dict[str, int]:
        """Requests that wait, by model."""
        return {model: len(waiters) for model, waiters in self._waiters.items() if waiters}

    def table_changed(self) -> None:
        """A new table is in force: everybody looks again."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, route: ModelRoute, table: Callable[[], RouteTable]) -> ModelRoute:
        """Return the route once it has a ready replica.

        Raises:
            Refusal: 503 (not placeable, queue full, waited too long), 404 (the model was removed).
        """
        waiters = self._waiters.setdefault(route.name, set())
        if len(waiters) >= route.limits.max_queue:
            raise Refusal(
                status=503,
                code="overloaded",
                message=f"{len(waiters)} requests wait for {route.name} already.",
                retry_after_s=_RETRY_S,
            )
        try:
            async with asyncio.timeout(route.limits.max_wait_s):
                return await self._wait(route, waiters, table)
        except TimeoutError as error:
            found = table().find(route.name) or route
            what = f"No replica was ready within {route.limits.max_wait_s:.0f} s."
            raise not_ready(found, what) from error
        finally:
            if not waiters:
                self._waiters.pop(route.name, None)

    async def _wait(
        self,
        route: ModelRoute,
        waiters: set[asyncio.Future[None]],
        table: Callable[[], RouteTable],
    ) -> ModelRoute:
        while True:
            found = table().find(route.name)
            if found is None:
                raise unknown_model(route.name)
            if found.targets:
                return found
            if not found.is_placeable:
                raise not_ready(found, "It cannot be placed now.")
            waiter = asyncio.get_running_loop().create_future()
            waiters.add(waiter)
            self._on_demand()
            try:
                await waiter
            finally:
                waiters.discard(waiter)


def not_ready(route: ModelRoute, what: str) -> Refusal:
    """Return the refusal of a model without a ready replica, with the reason that explain gives."""
    why = f" Why: {route.why_not_ready}" if route.why_not_ready else ""
    return Refusal(
        status=503,
        code="model_unavailable",
        message=f"The model {route.name} has no ready replica. {what}{why}",
        param="model",
        retry_after_s=_RETRY_S,
    )


def unknown_model(name: str) -> Refusal:
    """Return the refusal of a model that nobody serves."""
    return Refusal(
        status=404,
        code="model_not_found",
        message=f"The model {name[:200]!r} does not exist here; GET /v1/models lists yours.",
        param="model",
    )
