"""Alembic migrations; run at every start, each in a transaction."""
