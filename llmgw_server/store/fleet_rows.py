"""Nodes, join tokens and events, as rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from llmgw_common.ids import NodeId
from llmgw_server.access.enroll import EnrolledNode, JoinToken
from llmgw_server.events import Event
from llmgw_server.store.database import Database
from llmgw_server.store.tables import events, join_tokens, meta, nodes

#: Row of `meta` with the highest event id that may be in use.
_RESERVED: Final = "events_reserved"


class EnrollmentRows:
    """access.enroll.EnrollmentStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def nodes(self) -> list[EnrolledNode]:
        """Return every node."""
        async with self._database.begin() as connection:
            rows = (await connection.execute(sa.select(nodes))).all()
        return [
            EnrolledNode(
                node_id=NodeId(r.node_id),
                name=r.name,
                addresses=tuple(r.addresses),
                labels=r.labels,
                is_cordoned=r.is_cordoned,
                enrolled_at=r.enrolled_at,
                digest=r.digest,
            )
            for r in rows
        ]

    async def put_node(self, node: EnrolledNode) -> None:
        """Keep a node, new or changed."""
        values = {
            "node_id": node.node_id,
            "name": node.name,
            "digest": node.digest,
            "addresses": list(node.addresses),
            "labels": node.labels,
            "is_cordoned": node.is_cordoned,
            "enrolled_at": node.enrolled_at,
        }
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(nodes).where(nodes.c.node_id == node.node_id))
            await connection.execute(sa.insert(nodes).values(values))

    async def remove_node(self, node_id: NodeId) -> None:
        """Forget a node."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(nodes).where(nodes.c.node_id == node_id))

    async def put_token(self, token: JoinToken) -> None:
        """Keep a token."""
        values = {
            "token_id": token.token_id,
            "digest": token.digest,
            "uses_left": token.uses_left,
            "expires_at": token.expires_at,
            "labels": token.labels,
        }
        async with self._database.begin() as connection:
            await connection.execute(sa.insert(join_tokens).values(values))

    async def use_token(self, token_digest: bytes, now: datetime) -> JoinToken | None:
        """Take one use, in one statement, so that no two joins share the last one."""
        is_good = sa.and_(
            join_tokens.c.digest == token_digest,
            join_tokens.c.uses_left > 0,
            join_tokens.c.expires_at > now,
        )
        take = sa.update(join_tokens).where(is_good)
        async with self._database.begin() as connection:
            taken = await connection.execute(take.values(uses_left=join_tokens.c.uses_left - 1))
            if not taken.rowcount:
                return None
            query = sa.select(join_tokens).where(join_tokens.c.digest == token_digest)
            row = (await connection.execute(query)).one()
        return JoinToken(
            token_id=row.token_id,
            digest=row.digest,
            uses_left=row.uses_left,
            expires_at=row.expires_at,
            labels=row.labels,
        )


class EventRows:
    """events.EventStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, batch: Sequence[Event]) -> None:
        """Add events."""
        rows = [
            {
                "id": event.id,
                "at": event.at,
                "object_kind": event.object_kind,
                "object_id": event.object_id,
                "code": event.code,
                "text": event.text,
                "actor": event.actor,
                "trace_id": event.trace_id,
                "facts": event.facts,
            }
            for event in batch
        ]
        async with self._database.begin() as connection:
            await connection.execute(sa.insert(events), rows)

    async def read(self, since: int | None, limit: int) -> list[Event]:
        """Return events after `since`, oldest first; the newest ones if it is None."""
        query = sa.select(events).limit(limit)
        if since is not None:
            query = query.where(events.c.id > since).order_by(events.c.id)
        else:
            query = query.order_by(events.c.id.desc())
        async with self._database.begin() as connection:
            rows = (await connection.execute(query)).all()
        found = [_event(row) for row in rows]
        return found[::-1] if since is None else found

    async def last_id(self) -> int:
        """Return the highest id that was stored or reserved."""
        query = sa.select(meta.c.value).where(meta.c.name == _RESERVED)
        async with self._database.begin() as connection:
            stored = (await connection.execute(sa.select(sa.func.max(events.c.id)))).scalar()
            reserved = (await connection.execute(query)).scalar()
        return max(int(stored or 0), int(reserved or 0))

    async def reserve(self, up_to: int) -> None:
        """Note that ids up to this one may be in use."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(meta).where(meta.c.name == _RESERVED))
            await connection.execute(sa.insert(meta).values(name=_RESERVED, value=str(up_to)))

    async def forget_before(self, at: datetime) -> None:
        """Delete older ones."""
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(events).where(events.c.at < at))


def _event(row: Any) -> Event:  # noqa: ANN401 - a row's attributes are its columns
    return Event(
        id=row.id,
        at=row.at,
        object_kind=row.object_kind,
        object_id=row.object_id,
        code=row.code,
        text=row.text,
        actor=row.actor,
        trace_id=row.trace_id,
        facts=row.facts,
    )
