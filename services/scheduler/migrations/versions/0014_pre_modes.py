"""Debug mode of tasks and of their live attempts. Before, there was no such mode."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("task", "debug", sa.Boolean(), sa.false()),
    ("task", "mode_revision", sa.BigInteger(), sa.text("0")),
    ("task", "debugging", sa.Boolean(), sa.false()),
    ("task", "debug_ended", sa.Boolean(), sa.false()),
    ("task", "debug_attempts", sa.BigInteger(), sa.text("0")),
    ("task", "debug_seconds", sa.Double(), sa.text("0")),
    ("earlyfact", "debug", sa.Boolean(), sa.false()),
    ("earlyfact", "mode_revision", sa.BigInteger(), sa.text("0")),
)


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, name, type_, value in _COLUMNS:
        column = sa.Column(name, type_, nullable=False, server_default=value)
        op.add_column(table, column, schema="scheduler")
        op.alter_column(table, name, server_default=None, schema="scheduler")
