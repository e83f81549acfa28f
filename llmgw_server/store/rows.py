"""Catalog revisions, keys and the term, as rows."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from llmgw_common.errors import LlmgwError
from llmgw_common.ids import KeyId
from llmgw_server.access.keys import StoredKey
from llmgw_server.catalog.revisions import Revision
from llmgw_server.gateway.account import UsageRow
from llmgw_server.gateway.auth import KeyRecord
from llmgw_server.store.database import Database
from llmgw_server.store.tables import api_keys, catalog_revisions, meta, usage


class RevisionRows:
    """catalog.revisions.RevisionStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, revision: Revision) -> None:
        """Keep it; the number may be taken only once."""
        values = {
            "number": revision.number,
            "text": revision.text,
            "at": revision.at,
            "actor": revision.actor,
            "changes": revision.changes,
        }
        async with self._database.begin() as connection:
            try:
                await connection.execute(sa.insert(catalog_revisions).values(values))
            except IntegrityError as error:
                text = f"revision {revision.number} exists already: look again"
                raise LlmgwError("revision_changed", text) from error

    async def latest(self) -> Revision | None:
        """Return the newest."""
        found = await self.history(1)
        return found[0] if found else None

    async def history(self, limit: int) -> list[Revision]:
        """Return revisions, newest first."""
        query = sa.select(catalog_revisions).order_by(catalog_revisions.c.number.desc())
        async with self._database.begin() as connection:
            rows = (await connection.execute(query.limit(limit))).all()
        return [
            Revision(number=r.number, text=r.text, at=r.at, actor=r.actor, changes=r.changes)
            for r in rows
        ]


class KeyRows:
    """access.keys.KeyStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[StoredKey]:
        """Return every key."""
        async with self._database.begin() as connection:
            rows = (await connection.execute(sa.select(api_keys))).all()
        return [
            StoredKey(
                record=KeyRecord(
                    key_id=KeyId(r.key_id),
                    name=r.name,
                    role=r.role,
                    digest=r.digest,
                    models=None if r.models is None else frozenset(r.models),
                    expires_at=r.expires_at,
                    is_disabled=r.is_disabled,
                ),
                created_at=r.created_at,
            )
            for r in rows
        ]

    async def put(self, key: StoredKey) -> None:
        """Keep a key, new or changed."""
        record = key.record
        values = {
            "key_id": record.key_id,
            "name": record.name,
            "role": record.role,
            "digest": record.digest,
            "models": None if record.models is None else sorted(record.models),
            "created_at": key.created_at,
            "expires_at": record.expires_at,
            "is_disabled": record.is_disabled,
        }
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(api_keys).where(api_keys.c.key_id == record.key_id))
            await connection.execute(sa.insert(api_keys).values(values))


class TermRows:
    """access.term.TermStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def raise_term(self, at_least: int) -> int:
        """Raise the counter by one, and to `at_least` at least."""
        async with self._database.begin() as connection:
            query = sa.select(meta.c.value).where(meta.c.name == "term")
            found = (await connection.execute(query)).scalar()
            counter = max(int(found or 0) + 1, at_least)
            await connection.execute(sa.delete(meta).where(meta.c.name == "term"))
            await connection.execute(sa.insert(meta).values(name="term", value=str(counter)))
        return counter


class UsageRows:
    """gateway.account.UsageSink."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, rows: Sequence[UsageRow]) -> None:
        """Add the counts to those of the same minute and names."""
        async with self._database.begin() as connection:
            for row in rows:
                where = [usage.c[name] == value for name, value in row.key._asdict().items()]
                counts = {
                    "requests": row.requests,
                    "prompt_tokens": row.prompt_tokens,
                    "completion_tokens": row.completion_tokens,
                    "estimated": row.estimated,
                }
                added = {name: usage.c[name] + count for name, count in counts.items()}
                result = await connection.execute(sa.update(usage).where(*where).values(added))
                if not result.rowcount:
                    values = row.key._asdict() | counts
                    await connection.execute(sa.insert(usage).values(values))
