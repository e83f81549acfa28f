"""The server's composition root: every object is built here, once, in the order of the story.

1. What survives: the database and its rows.   2. What is wanted: the catalog.
3. Who may do what: keys, nodes, the term.     4. What is: the fleet registry.
5. The request path: the gateway.              6. The agents: hub and endpoint.
7. What to do and doing it: planner, executor, loop.   8. The admin API.   9. HTTP.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from prometheus_client import CollectorRegistry, generate_latest

from llmgw_common.clock import Clock, SystemClock
from llmgw_common.command_line import read_secret
from llmgw_common.ids import IdSource, ModelName, NodeId, ShardId
from llmgw_common.mint import RandomIds
from llmgw_server import __version__
from llmgw_server.access.enroll import EnrolledNode, Enrollment
from llmgw_server.access.keys import ApiKeys
from llmgw_server.access.term import ServerTerm
from llmgw_server.admin.api import create_admin_api
from llmgw_server.admin.door import AdminDoor
from llmgw_server.admin.ports import ControlPlane
from llmgw_server.catalog.revisions import CatalogRevisions
from llmgw_server.channel.endpoint import agent_routes
from llmgw_server.channel.hub import Hub
from llmgw_server.channel.session import ChannelLimits
from llmgw_server.events import EventBus
from llmgw_server.fleet.model import FleetView, Node, NodeState
from llmgw_server.fleet.node_state import Patience
from llmgw_server.fleet.registry import Change, FleetRegistry
from llmgw_server.gateway.asgi import GatewayApp
from llmgw_server.gateway.gateway import Gateway, GatewaySettings
from llmgw_server.metrics import FleetCollector, ReconcilerMetrics
from llmgw_server.planner.explain import Explanation, explain
from llmgw_server.planner.policy import Demand, Policy
from llmgw_server.reconciler.executor import Executor
from llmgw_server.reconciler.loop import Pace, ReconcileLoop, Surroundings
from llmgw_server.reconciler.probe import Prober
from llmgw_server.reconciler.routes import demand_from, route_table
from llmgw_server.settings import ServerSettings
from llmgw_server.store.database import Database
from llmgw_server.store.fleet_rows import EnrollmentRows, EventRows
from llmgw_server.store.rows import KeyRows, RevisionRows, TermRows, UsageRows

log = structlog.get_logger(__name__)

_RETENTION_EVERY_S = 3600.0


class ServerApp:
    """Everything of one server, wired. `start`, serve `asgi`, `stop`."""

    def __init__(
        self, settings: ServerSettings, database: Database, clock: Clock, ids: IdSource
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._database = database
        self._metrics = CollectorRegistry()
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = clock.now()

        self.catalog = CatalogRevisions(RevisionRows(database), clock)  # 2
        self.events = EventBus(EventRows(database), clock)

        self.keys = ApiKeys(KeyRows(database), clock, ids)  # 3
        self.enrollment = Enrollment(EnrollmentRows(database), clock, ids)
        self._term = ServerTerm(TermRows(database), ids)

        self.registry = FleetRegistry(clock.monotonic_s())  # 4

        self.gateway = Gateway(  # 5
            clock,
            ids,
            self._metrics,
            UsageRows(database),
            self._wake,
            GatewaySettings(auth=settings.gateway.auth, body_bytes_max=settings.gateway.max_body),
        )

        channel = settings.channel  # 6
        limits = ChannelLimits(
            heartbeat_s=channel.heartbeat, read_idle_s=channel.read_idle, ack_s=channel.ack
        )
        self.hub = Hub(self.registry, clock, ids, self._term, limits, self._wake)
        self.enrollment.is_connected = self.hub.is_connected
        self.enrollment.on_enrolled = self._enrolled

        reconcile = settings.reconcile  # 7
        self._policy = Policy(
            settle_place_s=reconcile.settling,
            settle_stop_s=reconcile.settling_stop,
            retention_s=reconcile.failed_retention,
        )
        patience = Patience(
            suspect_after_s=reconcile.suspect_after, lost_after_s=reconcile.lost_after
        )
        self._prober = Prober(self.registry.view, self._wake)
        self.loop = ReconcileLoop(
            self.registry,
            Executor(self.registry, self.hub, clock, ids),
            Surroundings(
                catalog=lambda: self.catalog.catalog,
                demand=self.demand,
                publish=self._publish_routes,
                record=self._record,
                measured=ReconcilerMetrics(self._metrics).measured,
            ),
            clock,
            Pace(policy=self._policy, patience=patience, interval_s=reconcile.interval),
        )
        self._metrics.register(FleetCollector(self.registry.view))

        self.api = self._admin_api(ids.new("srv"))  # 8
        self.asgi = _Dispatcher(AdminDoor(self.api, self.keys), self.gateway.app)  # 9

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> str | None:
        """Read what survived and begin; return the first admin key if one was just made."""
        settings = self.settings
        await self._term.begin()
        await self.events.start()
        await self.catalog.load()
        await self._first_catalog()
        await self.keys.load()
        self.keys.on_change(self._publish_keys)
        first_key = await self.keys.ensure_first_admin_key(
            await _secret(settings.bootstrap_admin_key_file, "bootstrap_admin_key_file")
        )
        self._publish_keys()
        token = await _secret(settings.bootstrap_join_token_file, "bootstrap_join_token_file")
        for node in await self.enrollment.load(token):
            self._enrolled(node)
        self.catalog.on_change(self._catalog_changed)
        await self.gateway.start()
        self._tasks = [
            asyncio.create_task(self.loop.run(), name="reconcile"),
            asyncio.create_task(self._prober.run(), name="prober"),
            asyncio.create_task(self._forget_old_events(), name="retention"),
        ]
        return None if settings.bootstrap_admin_key_file else first_key

    async def before_shutdown(self) -> None:
        """End what would keep connections open: agents' sessions and followers of events."""
        self.hub.close_all("the server is going down; engines go on")
        self.events.end_followers()

    async def stop(self) -> None:
        """End the loops and write what is left to write."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.gateway.stop()
        await self.events.stop()
        await self._database.close()

    # --- how the paths meet ----------------------------------------------------------------------

    def _wake(self) -> None:
        self.loop.wake()

    def demand(self) -> Demand:
        """Return what requests are doing, as the planner reads it."""
        counts = self.gateway.demand()
        view = self.registry.view()
        return demand_from(counts, self.gateway.table, self._prober.answers, view)

    def _publish_routes(self, fleet: FleetView) -> None:
        current = self.gateway.table
        table = route_table(self.catalog.catalog, fleet, self.loop.last_plan, current.revision + 1)
        if table.routes != current.routes:
            self.gateway.publish_routes(table)
            self._wake()
        used = {r: at for (r, _), at in self.gateway.demand().last_used_at_s.items()}
        self.registry.note_use(used)

    def _publish_keys(self) -> None:
        self.gateway.publish_keys(self.keys.ring)

    def _record(self, change: Change) -> None:
        self.events.emit(
            change.object_kind, change.object_id, change.code, change.text, facts=change.facts
        )

    def _enrolled(self, enrolled: EnrolledNode) -> None:
        self.registry.enroll(
            Node(
                node_id=enrolled.node_id,
                name=enrolled.name,
                state=NodeState.EXPECTED,
                since_at_s=self._clock.monotonic_s(),
                is_cordoned=enrolled.is_cordoned,
                addresses=enrolled.addresses,
                enrolled_labels=enrolled.labels,
            )
        )

    def _catalog_changed(self) -> None:
        for model in self.catalog.catalog.models:
            self.registry.clear_failures(ModelName(model.name))
        self._wake()

    async def _first_catalog(self) -> None:
        file = self.settings.catalog_file
        if file is None or self.catalog.number:
            return
        text = await asyncio.to_thread(Path(file).read_text, encoding="utf-8")
        await self.catalog.apply(text, file=str(file), actor="catalog_file")

    async def _forget_old_events(self) -> None:
        while True:
            kept = timedelta(seconds=self.settings.events.retention)
            await self.events.forget_before(self._clock.now() - kept)
            await asyncio.sleep(_RETENTION_EVERY_S)

    # --- the admin API ---------------------------------------------------------------------------

    def _admin_api(self, server_id: str) -> FastAPI:
        api = create_admin_api(
            ControlPlane(
                version=__version__,
                server_id=server_id,
                started_at=self._started_at,
                clock=self._clock,
                catalog=self.catalog,
                keys=self.keys,
                enrollment=self.enrollment,
                events=self.events,
                fleet=self.registry.view,
                plan=lambda: self.loop.last_plan,
                demand=self.demand,
                explain=self._explain,
                tail_logs=self._tail_logs,
                cordon=self._cordon,
                remove_node=self._remove_node,
                is_ready=self._database.ping,
                metrics=lambda: generate_latest(self._metrics),
                metrics_token=self.settings.metrics_token.get_secret_value(),
            )
        )
        api.include_router(agent_routes(self.hub, self.enrollment))
        if self.settings.tracing.enabled:
            FastAPIInstrumentor.instrument_app(api, excluded_urls="healthz,readyz,metrics")
        return api

    def _explain(self, name: str) -> Explanation | None:
        model = self.catalog.catalog.model(name)
        if model is None:
            return None
        now_s = self._clock.monotonic_s()
        return explain(model, self.registry.view(), self.loop.last_plan, now_s, self._policy)

    def _tail_logs(
        self, node_id: NodeId, shard_id: ShardId, lines: int, follow: bool
    ) -> AsyncIterator[str]:
        return self.hub.tail_logs(node_id, shard_id, lines=lines, follow=follow)

    async def _cordon(self, node_id: NodeId, is_cordoned: bool) -> None:
        await self.enrollment.cordon(node_id, is_cordoned=is_cordoned)
        self.registry.cordon(node_id, is_cordoned=is_cordoned)
        self._wake()

    async def _remove_node(self, node_id: NodeId) -> None:
        await self.enrollment.remove(node_id)
        self.hub.disconnect(node_id, "this node was removed")
        self.registry.remove_node(node_id, self._clock.monotonic_s())
        self._wake()


class _Dispatcher:
    """Gives /v1 to the gateway and everything else to FastAPI."""

    def __init__(self, api: AdminDoor, gateway: GatewayApp) -> None:
        self._api = api
        self._gateway = gateway

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "http" and GatewayApp.owns(scope["path"]):
            await self._gateway(scope, receive, send)
        else:
            await self._api(scope, receive, send)


class _HttpServer(uvicorn.Server):
    """Lets the app end its long connections before it waits for requests to end."""

    def __init__(self, config: uvicorn.Config, before: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._before = before

    async def shutdown(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        await self._before()
        await super().shutdown(*args, **kwargs)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals without raising them again at the end: a clean stop has exit code 0."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def run(settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Run a server until it is told to stop; `announce` is given the first admin key, once.

    Raises:
        LlmgwError: the database cannot be opened.
        InvalidDocumentError: the stored catalog or a secret file cannot be read.
    """
    data_dir = settings.data_dir.expanduser().resolve()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = settings.database_url or f"sqlite+aiosqlite:///{data_dir / 'llmgw.db'}"
    database = await Database.open(url)
    app = ServerApp(settings, database, SystemClock(), RandomIds())
    try:
        first_key = await app.start()
        if first_key:
            announce(first_key)
        config = uvicorn.Config(
            app.asgi,
            host=settings.host,
            port=settings.port,
            http="httptools",
            ws="websockets-sansio",
            ws_max_size=1 << 20,
            ws_ping_interval=None,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            backlog=4096,
            timeout_graceful_shutdown=int(settings.gateway.stop_grace),
            ssl_certfile=settings.tls.certificate_file,
            ssl_keyfile=settings.tls.key_file,
        )
        log.info("listening", listen=settings.listen, version=__version__)
        await _HttpServer(config, app.before_shutdown).serve()
    finally:
        await app.stop()


async def _secret(path: Path | None, what: str) -> str | None:
    return await asyncio.to_thread(read_secret, path, what) if path else None
