"""Opens the database: one server a SQLite file, checked, migrated, and never silently empty.

Rule 1: SQLite runs in WAL mode with synchronous=FULL: an acknowledged write survives a power cut.
Rule 2: a file that is damaged, or whose schema is newer than this program's, is refused in words.
Rule 3: an error of the database is told as `unavailable`; what was not committed is not in force.
"""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from llmgw_common.errors import LlmgwError

log = structlog.get_logger(__name__)

_MIGRATIONS: Final = Path(__file__).with_name("migrations")


class Database:
    """An open database; `begin` gives a transaction."""

    def __init__(self, engine: AsyncEngine, lock: int | None) -> None:
        self._engine = engine
        self._lock = lock

    @classmethod
    async def open(cls, url: str) -> "Database":
        """Open, check and migrate the database of a SQLAlchemy URL.

        Raises:
            LlmgwError: `conflict` (another server has it), `unavailable` (damaged, too new).
        """
        parsed = make_url(url)
        lock = None
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            lock = _lock(Path(str(parsed.database)))
        engine = create_async_engine(url, pool_pre_ping=False)
        if parsed.get_backend_name() == "sqlite":
            sa.event.listen(engine.sync_engine, "connect", _set_pragmas)
            sa.event.listen(engine.sync_engine, "begin", _begin)
        try:
            async with engine.begin() as connection:
                if parsed.get_backend_name() == "sqlite":
                    await _check(connection)
                await connection.run_sync(_migrate)
        except (DBAPIError, LlmgwError) as error:
            await engine.dispose()
            if lock is not None:
                os.close(lock)
            if isinstance(error, LlmgwError):
                raise
            text = (
                f"the database cannot be opened: {error.orig}; restore a backup or fix its access"
            )
            raise LlmgwError("unavailable", text) from error
        return cls(engine, lock)

    async def close(self) -> None:
        """Close it."""
        await self._engine.dispose()
        if self._lock is not None:
            os.close(self._lock)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """Give a transaction: committed at the end, rolled back by an exception.

        Raises:
            LlmgwError: `unavailable`, the database failed; nothing of it was committed.
        """
        try:
            async with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            log.warning("database failed", error=str(error.orig))
            raise LlmgwError("unavailable", f"the database failed: {error.orig}") from error

    async def ping(self) -> None:
        """Raise LlmgwError unless the database answers."""
        async with self.begin() as connection:
            await connection.execute(sa.select(1))


def _lock(file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise LlmgwError("conflict", f"another server runs on {file}") from error
    return descriptor


def _begin(connection: sa.Connection) -> None:
    """Begin for real: the driver by itself would leave DDL, and so migrations, outside of it."""
    connection.exec_driver_sql("BEGIN")


def _set_pragmas(connection: Any, _record: object) -> None:  # noqa: ANN401 - a driver's own type
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


async def _check(connection: AsyncConnection) -> None:
    found = (await connection.exec_driver_sql("PRAGMA quick_check(1)")).scalar()
    if found != "ok":
        text = f"the database is damaged ({found}); restore a backup, it is not started empty"
        raise LlmgwError("unavailable", text)


def _migrate(connection: sa.Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        text = f"the database has schema {current}, which is newer than this program: upgrade llmgw"
        raise LlmgwError("unavailable", text)
    command.upgrade(config, "head")
