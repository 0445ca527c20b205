"""Runs that hand their nodes over on their own; life states."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TEXT = sa.Text(collation="C")


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run",
        sa.Column("yield_requested_at", sa.DateTime(timezone=True), nullable=True),
        schema="launcher",
    )
    op.add_column(
        "run",
        sa.Column("yield_reason", TEXT, nullable=False, server_default=sa.text("''")),
        schema="launcher",
    )
    op.create_table(
        "lifestate",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("media_type", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
        schema="launcher",
    )
    op.create_table(
        "lifestatecontent",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
        schema="launcher",
    )
