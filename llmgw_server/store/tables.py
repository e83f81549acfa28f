"""The schema, as of the newest migration."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

metadata = sa.MetaData()


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time, kept as naive UTC (SQLite knows no zones)."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:  # noqa: ANN401
        """Store it without its zone, which is always UTC."""
        return value.astimezone(UTC).replace(tzinfo=None) if value else None

    def process_result_value(self, value: Any | None, dialect: Any) -> datetime | None:  # noqa: ANN401
        """Give the zone back."""
        return value.replace(tzinfo=UTC) if value else None


catalog_revisions = sa.Table(
    "catalog_revisions",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("changes", sa.Integer, nullable=False),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("models", sa.JSON, nullable=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=True),
    sa.Column("is_disabled", sa.Boolean, nullable=False),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("node_id", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
    sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("addresses", sa.JSON, nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("is_cordoned", sa.Boolean, nullable=False),
    sa.Column("enrolled_at", UtcDateTime, nullable=False),
)

join_tokens = sa.Table(
    "join_tokens",
    metadata,
    sa.Column("token_id", sa.String(64), primary_key=True),
    sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("uses_left", sa.Integer, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", UtcDateTime, nullable=False, index=True),
    sa.Column("object_kind", sa.String(40), nullable=False),
    sa.Column("object_id", sa.String(200), nullable=False),
    sa.Column("code", sa.String(60), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("trace_id", sa.String(64), nullable=False),
    sa.Column("facts", sa.JSON, nullable=False),
    sa.Index("ix_events_object", "object_kind", "object_id"),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("minute", UtcDateTime, primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("replica_id", sa.String(64), primary_key=True),
    sa.Column("outcome", sa.String(60), primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("estimated", sa.BigInteger, nullable=False),
)

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.String(60), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
