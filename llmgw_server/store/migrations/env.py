"""Alembic's entry: the connection comes from database.py."""

from alembic import context

from llmgw_server.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
