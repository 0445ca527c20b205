"""Pre create."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic import steps

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    steps.create_plumbing()
    steps.keep_dead_letters()
    steps.index_inbox_by_age()
    steps.number_outbox_periods()
    steps.keep_refused_events()
    op.create_table(
        "task",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("task_pkey")),
        schema="monitor",
    )
    op.create_index(
        "task_ended",
        "task",
        ["ended_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
