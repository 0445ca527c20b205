"""Pre create."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import create_plumbing

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    create_plumbing()
    op.create_table(
        "counter",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("counter_pkey")),
        schema="quota",
    )
    op.create_table(
        "quota",
        sa.Column("scope", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("user", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("unit", sa.Text(collation="C"), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text(collation="C"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint('"limit" >= 0', name="quota_limit_counts"),
        sa.PrimaryKeyConstraint("scope", name=op.f("quota_pkey")),
        sa.UniqueConstraint("version", name="quota_version"),
        schema="quota",
    )
    op.create_table(
        "run",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("recorded", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "NOT recorded OR (started_at IS NOT NULL AND ended_at IS NOT NULL)",
            name="run_recorded_when_known",
        ),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("run_pkey")),
        schema="quota",
    )
    op.create_index(op.f("run_ended_at_idx"), "run", ["ended_at"], unique=False, schema="quota")
    op.create_table(
        "task",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("task_pkey")),
        schema="quota",
    )
