"""Pre create."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from libs.store.alembic.steps import create_plumbing

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    create_plumbing()
    op.create_table(
        "indexentry",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "task_id", "attempt", "rank", "offset", name=op.f("indexentry_pkey")
        ),
        schema="log_collector",
    )
    op.create_table(
        "output",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("full", sa.Boolean(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("size >= 0", name="output_size_counts"),
        sa.PrimaryKeyConstraint("task_id", "attempt", "rank", name=op.f("output_pkey")),
        schema="log_collector",
    )
    op.create_table(
        "run",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("placements", postgresql.JSONB(), nullable=False),
        sa.Column("exited_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("collected", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "NOT collected OR exited_at IS NOT NULL", name="run_collected_after_exit"
        ),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("run_pkey")),
        schema="log_collector",
    )
    op.create_index(
        op.f("run_exited_at_idx"), "run", ["exited_at"], unique=False, schema="log_collector"
    )
    op.create_index(
        "run_open",
        "run",
        ["task_id", "attempt"],
        unique=False,
        schema="log_collector",
        postgresql_where=sa.text("NOT collected"),
    )
