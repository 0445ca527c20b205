"""Alembic's entry, the same for every service; run by ``libs.store.migrate`` only.

Connection and tables come from the config's attributes: there is no alembic.ini and no URL here.
"""

from __future__ import annotations

from alembic import context

from libs.store.migrate import options

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["tables"].metadata,
    **options(attributes["tables"]),
)
with context.begin_transaction():
    context.run_migrations()
