"""The whole server in this process, over a real SQLite file, spoken to without a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from llmgw_common.clock import FakeClock
from llmgw_common.mint import SeededIds
from llmgw_server.app import ServerApp
from llmgw_server.settings import ServerSettings
from llmgw_server.store.database import Database


def sqlite_url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder / 'llmgw.db'}"


@asynccontextmanager
async def running_server(
    folder: Path, clock: FakeClock | None = None, **settings: Any
) -> AsyncIterator[tuple[ServerApp, str | None]]:
    database = await Database.open(sqlite_url(folder))
    chosen = ServerSettings(**({"data_dir": folder} | settings))
    app = ServerApp(chosen, database, clock or FakeClock(), SeededIds())
    try:
        key = await app.start()
        yield app, key
    finally:
        await app.before_shutdown()
        await app.stop()


def client_of(app: ServerApp, key: str | None) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app=app.asgi, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)
