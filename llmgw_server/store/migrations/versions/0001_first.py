"""The first schema.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "catalog_revisions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("changes", sa.Integer, nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("models", sa.JSON, nullable=True),
        sa.Column("created_at", sa.DateTime, nullable=False),
        sa.Column("expires_at", sa.DateTime, nullable=True),
        sa.Column("is_disabled", sa.Boolean, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False, unique=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("addresses", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("is_cordoned", sa.Boolean, nullable=False),
        sa.Column("enrolled_at", sa.DateTime, nullable=False),
    )
    op.create_table(
        "join_tokens",
        sa.Column("token_id", sa.String(64), primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("uses_left", sa.Integer, nullable=False),
        sa.Column("expires_at", sa.DateTime, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.DateTime, nullable=False),
        sa.Column("object_kind", sa.String(40), nullable=False),
        sa.Column("object_id", sa.String(200), nullable=False),
        sa.Column("code", sa.String(60), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("trace_id", sa.String(64), nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
    )
    op.create_index("ix_events_at", "events", ["at"])
    op.create_index("ix_events_object", "events", ["object_kind", "object_id"])
    op.create_table(
        "usage",
        sa.Column("minute", sa.DateTime, primary_key=True),
        sa.Column("model", sa.String(200), primary_key=True),
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("replica_id", sa.String(64), primary_key=True),
        sa.Column("outcome", sa.String(60), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("estimated", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.String(60), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
