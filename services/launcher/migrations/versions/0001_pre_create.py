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
        "inventorynode",
        sa.Column("node_id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("node", postgresql.JSONB(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("silent_since", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("node_id", name=op.f("inventorynode_pkey")),
        schema="launcher",
    )
    op.create_table(
        "masterport",
        sa.Column("port", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("port", name=op.f("masterport_pkey")),
        schema="launcher",
    )
    op.create_table(
        "pastrun",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("placements", postgresql.JSONB(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit", postgresql.JSONB(), nullable=False),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=True),
        sa.Column("forgotten_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pastrun_pkey")),
        schema="launcher",
    )
    op.create_index(
        op.f("pastrun_forgotten_at_idx"),
        "pastrun",
        ["forgotten_at"],
        unique=False,
        schema="launcher",
    )
    op.create_table(
        "run",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=True),
        sa.Column("placements", postgresql.JSONB(), nullable=False),
        sa.Column("resume_from", postgresql.JSONB(), nullable=True),
        sa.Column("start_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("assigned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempt_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempt_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("kill_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("signalled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ending_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end_cause", sa.Text(collation="C"), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exited_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("exit", postgresql.JSONB(), nullable=True),
        sa.CheckConstraint(
            "(exit IS NOT NULL) = (state IN ('exited', 'forgotten'))",
            name="run_exit_is_recorded_once",
        ),
        sa.CheckConstraint("state = 'tombstone' OR spec IS NOT NULL", name="run_is_specified"),
        sa.CheckConstraint(
            "(ending_at IS NULL) = (end_cause IS NULL)", name="run_ends_for_a_cause"
        ),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("run_pkey")),
        schema="launcher",
    )
    op.create_index(
        "run_one_running",
        "run",
        ["task_id"],
        unique=True,
        schema="launcher",
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "savedcheckpoint",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("no", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "no", name=op.f("savedcheckpoint_pkey")),
        schema="launcher",
    )
