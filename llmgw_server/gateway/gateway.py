"""The gateway as one object: takes route tables and keys, serves requests, tells the demand."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry

from llmgw_common.clock import Clock
from llmgw_common.ids import IdSource
from llmgw_server.gateway.account import Accounts, UsageSink
from llmgw_server.gateway.admission import Admission
from llmgw_server.gateway.asgi import EdgeLimits, GatewayApp
from llmgw_server.gateway.auth import KeyRing
from llmgw_server.gateway.balance import Balance
from llmgw_server.gateway.core import Core
from llmgw_server.gateway.metrics import GatewayMetrics
from llmgw_server.gateway.relay import Forwarder
from llmgw_server.gateway.table import RouteTable, TargetKey
from llmgw_server.gateway.upstream import UpstreamPool


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What the owner decides (settings: `gateway`); times in seconds.

    Attributes:
        body_s: how long a request's body may take to come, beside its size's own share.
        client_stall_s: how long a client may take nothing of its answer before it counts as gone.
    """

    auth: Literal["keys", "none"] = "keys"
    body_bytes_max: int = 32 << 20
    body_s: float = 30.0
    client_stall_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDemand:
    """What requests are doing now; `last_used_at_s` on the gateway's clock."""

    waiting: Mapping[str, int]
    in_flight: Mapping[TargetKey, int]
    last_used_at_s: Mapping[TargetKey, float]


class Gateway:
    """Owns the parts of the request path."""

    def __init__(
        self,
        clock: Clock,
        ids: IdSource,
        registry: CollectorRegistry,
        sink: UsageSink,
        on_demand: Callable[[], None],
        settings: GatewaySettings,
    ) -> None:
        self._pool = UpstreamPool()
        metrics = GatewayMetrics(registry)
        self._core = Core(
            admission=Admission(on_demand),
            balance=Balance(clock.monotonic_s),
            forwarder=Forwarder(pool=self._pool, metrics=metrics, now_s=clock.monotonic_s),
            accounts=Accounts(sink, clock.now),
            metrics=metrics,
            needs_key=settings.auth == "keys",
            now=clock.now,
            now_s=clock.monotonic_s,
        )
        self.app = GatewayApp(
            self._core,
            ids,
            EdgeLimits(
                body_bytes=settings.body_bytes_max,
                body_s=settings.body_s,
                client_stall_s=settings.client_stall_s,
            ),
        )
        self._booking: asyncio.Task[None] | None = None

    @property
    def table(self) -> RouteTable:
        """The table in force: once published it is acknowledged, as this is the only process."""
        return self._core.table

    def publish_routes(self, table: RouteTable) -> None:
        """Put a table in force: from here on no new request goes to a target it does not have."""
        core = self._core
        core.table = table
        targets = [target for route in table.routes for target in route.targets]
        core.balance.forget({target.key for target in targets})
        self._pool.keep_only({(target.host, target.port) for target in targets})
        core.admission.table_changed()

    def publish_keys(self, keys: KeyRing) -> None:
        """Put a key ring in force."""
        self._core.keys = keys

    def demand(self) -> GatewayDemand:
        """Return what requests are doing now."""
        core = self._core
        return GatewayDemand(
            waiting=core.admission.waiting,
            in_flight=dict(core.balance.in_flight),
            last_used_at_s=dict(core.balance.last_used_at_s),
        )

    async def start(self) -> None:
        """Begin to write the books."""
        self._booking = asyncio.create_task(self._core.accounts.run(), name="gateway-books")

    async def stop(self) -> None:
        """Write what is booked and close what is idle; requests have ended before."""
        self._core.accounts.end()
        if self._booking:
            await self._booking
        await self._core.accounts.flush()
        self._pool.close()
