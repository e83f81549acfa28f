"""The real gateway behind a real uvicorn in this process, over scripted engines."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import httpx
import uvicorn
from prometheus_client import CollectorRegistry

from llmgw_common.api_keys import digest, mint_key
from llmgw_common.clock import SystemClock
from llmgw_common.ids import KeyId, ReplicaId
from llmgw_common.mint import RandomIds
from llmgw_server.gateway.account import UsageRow
from llmgw_server.gateway.auth import KeyRecord, KeyRing
from llmgw_server.gateway.gateway import Gateway, GatewaySettings
from llmgw_server.gateway.table import ModelRoute, RouteLimits, RouteTable, Target


@dataclass
class RecordingSink:
    rows: list[UsageRow] = field(default_factory=list)
    fails: bool = False

    async def write(self, rows: Sequence[UsageRow]) -> None:
        if self.fails:
            raise OSError("disk full")
        self.rows.extend(rows)


def target(port: int, name: str = "rep-1", **fields: object) -> Target:
    defaults = {"served_model": "m", "access_key": "engine-key", "host": "127.0.0.1", "epoch": 1}
    return Target(**({"replica_id": ReplicaId(name), "port": port} | defaults | fields))  # type: ignore[arg-type]


def route(*targets: Target, **fields: object) -> ModelRoute:
    return ModelRoute(**({"name": "m", "targets": targets} | fields))  # type: ignore[arg-type]


QUICK = RouteLimits(max_wait_s=0.5, first_byte_s=1.0, whole_answer_s=1.0, between_bytes_s=0.5)


class Served:
    """A running gateway, its key and its client."""

    def __init__(self, gateway: Gateway, sink: RecordingSink, url: str, key: str) -> None:
        self.gateway = gateway
        self.sink = sink
        self.url = url
        self.key = key
        self.demands = 0
        self.client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=20
        )

    def publish(self, *routes: ModelRoute) -> None:
        table = RouteTable.of(self.gateway.table.revision + 1, routes)
        self.gateway.publish_routes(table)

    async def chat(self, **fields: object) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
        return await self.client.post("/v1/chat/completions", json=body)

    async def idle(self) -> None:
        """Wait until nothing is in flight, then write the books."""
        async with asyncio.timeout(5):
            while self.gateway.demand().in_flight or self.gateway.demand().waiting:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        await self.gateway._core.accounts.flush()  # the sink is the test's own


@asynccontextmanager
async def served(
    *routes: ModelRoute, settings: GatewaySettings | None = None
) -> AsyncIterator[Served]:
    sink = RecordingSink()
    key = mint_key()
    box: list[Served] = []

    def on_demand() -> None:
        box[0].demands += 1

    gateway = Gateway(
        SystemClock(),
        RandomIds(),
        CollectorRegistry(),
        sink,
        on_demand,
        settings or GatewaySettings(),
    )
    record = KeyRecord(key_id=KeyId("key-1"), name="test", role="client", digest=digest(key))
    gateway.publish_keys(KeyRing.of([record]))
    config = uvicorn.Config(gateway.app, port=0, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    found = Served(gateway, sink, f"http://127.0.0.1:{port}", key)
    box.append(found)
    found.publish(*routes)
    await gateway.start()
    try:
        yield found
    finally:
        await found.client.aclose()
        server.should_exit = True
        await serving
        await gateway.stop()
