"""Alembic's entry point; registry.store.store.migrate hands in the connection; there is no other way to run it."""

from __future__ import annotations

from alembic import context

from registry.store.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
