"""Pre series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "series",
        sa.Column("subject", sa.Text(collation="C"), nullable=False),
        sa.Column("step_seconds", sa.BigInteger(), nullable=False),
        sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("part", sa.Text(collation="C"), nullable=False),
        sa.Column("first_rank", sa.BigInteger(), nullable=False),
        sa.Column("last_rank", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "subject", "step_seconds", "begins_at", "part", name=op.f("series_pkey")
        ),
        schema="monitor",
    )
    op.create_index("series_expires_at_idx", "series", ["expires_at"], schema="monitor")
    op.create_index(
        "series_unfolded",
        "series",
        ["step_seconds", "begins_at"],
        schema="monitor",
        postgresql_where=sa.text("NOT folded"),
    )
    op.create_table(
        "activity",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("measured_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measured_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measured_gpu_seconds", sa.Double(), nullable=False),
        sa.Column("idle_gpu_seconds", sa.Double(), nullable=False),
        sa.Column("idle", postgresql.JSONB(), nullable=False),
        sa.Column("quiet", postgresql.JSONB(), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("published_idle_gpus", sa.BigInteger(), nullable=False),
        sa.Column("published_quiet", sa.Boolean(), nullable=False),
        sa.Column("unpublished", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("activity_pkey")),
        schema="monitor",
    )
    op.create_index("activity_measured_until_idx", "activity", ["measured_until"], schema="monitor")
    op.create_index(
        "activity_unpublished",
        "activity",
        ["measured_until"],
        schema="monitor",
        postgresql_where=sa.text("unpublished"),
    )
