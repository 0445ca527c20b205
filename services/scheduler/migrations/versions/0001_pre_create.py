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
        "decision",
        sa.Column("no", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(collation="C"), nullable=False),
        sa.Column("reason", postgresql.JSONB(), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("no", name=op.f("decision_pkey")),
        schema="scheduler",
    )
    op.create_index(
        op.f("decision_decided_at_idx"),
        "decision",
        ["decided_at"],
        unique=False,
        schema="scheduler",
    )
    op.create_index(
        "decision_of_task", "decision", ["task_id", "no"], unique=False, schema="scheduler"
    )
    op.create_table(
        "earlyfact",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("goal", sa.Text(collation="C"), nullable=False),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("priority_revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("earlyfact_pkey")),
        schema="scheduler",
    )
    op.create_table(
        "endedtask",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("endedtask_pkey")),
        schema="scheduler",
    )
    op.create_index(
        op.f("endedtask_ended_at_idx"), "endedtask", ["ended_at"], unique=False, schema="scheduler"
    )
    op.create_table(
        "inventory",
        sa.Column("runtime", sa.Text(collation="C"), nullable=False),
        sa.Column("node_ids", postgresql.JSONB(), nullable=False),
        sa.Column("listed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("runtime", name=op.f("inventory_pkey")),
        schema="scheduler",
    )
    op.create_table(
        "limit",
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("user", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("unit", sa.Text(collation="C"), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("group", "user", "team", "priority", name=op.f("limit_pkey")),
        schema="scheduler",
    )
    op.create_table(
        "node",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("schedulable", sa.Boolean(), nullable=False),
        sa.Column("ready", sa.Boolean(), nullable=False),
        sa.Column("unusable_gpus", postgresql.JSONB(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("node_pkey")),
        schema="scheduler",
    )
    op.create_table(
        "slot",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("node_id", sa.Text(collation="C"), nullable=False),
        sa.Column("gpu", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "attempt", "node_id", "gpu", name=op.f("slot_pkey")),
        sa.UniqueConstraint("node_id", "gpu", name="slot_has_one_owner"),
        schema="scheduler",
    )
    op.create_table(
        "task",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("goal", sa.Text(collation="C"), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.Column("priority_revision", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("reason", postgresql.JSONB(), nullable=False),
        sa.Column("level", sa.Text(collation="C"), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("live_attempt", sa.BigInteger(), nullable=True),
        sa.Column("placements", postgresql.JSONB(), nullable=False),
        sa.Column("assigned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("start_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ack_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempted_for", sa.Text(collation="C"), nullable=False),
        sa.Column("end_reason", postgresql.JSONB(), nullable=True),
        sa.Column("first_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        sa.Column("not_before_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("retries_used", sa.BigInteger(), nullable=False),
        sa.Column("start_attempts", sa.BigInteger(), nullable=False),
        sa.Column("attempts_without_progress", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=True),
        sa.Column("began_from_checkpoint", sa.BigInteger(), nullable=False),
        sa.Column("exit", postgresql.JSONB(), nullable=True),
        sa.CheckConstraint(
            "(live_attempt IS NOT NULL) = (state IN ('TASK_STATE_KILLING', "
            "'TASK_STATE_PREEMPTING', 'TASK_STATE_RUNNING', 'TASK_STATE_STARTING'))",
            name="task_holds_while_it_lives",
        ),
        sa.CheckConstraint(
            "live_attempt IS NULL OR live_attempt = attempt", name="task_live_attempt_is_the_last"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("task_pkey")),
        schema="scheduler",
    )
    op.create_index(op.f("task_state_idx"), "task", ["state"], unique=False, schema="scheduler")
