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
        "accepted",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=True),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("priority_order", sa.BigInteger(), nullable=False),
        sa.Column("priority_revision", sa.BigInteger(), nullable=False),
        sa.Column("goal", sa.Text(collation="C"), nullable=False),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("state_version", sa.BigInteger(), nullable=False),
        sa.Column("reason", postgresql.JSONB(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("observed_revision", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=True),
        sa.Column("exit", postgresql.JSONB(), nullable=True),
        sa.Column("held_gpus", sa.BigInteger(), nullable=False),
        sa.Column("held_nodes", sa.BigInteger(), nullable=False),
        sa.Column("attempts_without_progress", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("accepted_pkey")),
        schema="gateway",
    )
    op.create_index(op.f("accepted_name_idx"), "accepted", ["name"], unique=False, schema="gateway")
    op.create_index(
        op.f("accepted_owner_idx"), "accepted", ["owner"], unique=False, schema="gateway"
    )
    op.create_index(
        op.f("accepted_state_idx"), "accepted", ["state"], unique=False, schema="gateway"
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.Text(collation="C"), nullable=False),
        sa.Column("action", sa.Text(collation="C"), nullable=False),
        sa.Column("target", sa.Text(collation="C"), nullable=False),
        sa.Column("outcome", sa.Text(collation="C"), nullable=False),
        sa.Column("detail", sa.Text(collation="C"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_pkey")),
        schema="gateway",
    )
    op.create_index(op.f("audit_at_idx"), "audit", ["at"], unique=False, schema="gateway")
    op.create_table(
        "event",
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(collation="C"), nullable=False),
        sa.Column("fact", sa.Text(collation="C"), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("event_pkey")),
        schema="gateway",
    )
    op.create_index(op.f("event_fact_idx"), "event", ["fact"], unique=False, schema="gateway")
    op.create_index(op.f("event_task_id_idx"), "event", ["task_id"], unique=False, schema="gateway")
    op.create_table(
        "eventhead",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("oldest", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("eventhead_pkey")),
        schema="gateway",
    )
    op.create_table(
        "metrics",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("latest", postgresql.JSONB(), nullable=False),
        sa.Column("points", postgresql.JSONB(), nullable=False),
        sa.Column("stride", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "rank", name=op.f("metrics_pkey")),
        schema="gateway",
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("node", postgresql.JSONB(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name=op.f("node_pkey")),
        schema="gateway",
    )
    op.create_table(
        "quota",
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("user", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("unit", sa.Text(collation="C"), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("changed_by", sa.Text(collation="C"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "group", "user", "team", "priority", "unit", name=op.f("quota_pkey")
        ),
        schema="gateway",
    )
    op.create_table(
        "rebuild",
        sa.Column("service", sa.Text(collation="C"), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("service", name=op.f("rebuild_pkey")),
        schema="gateway",
    )
    op.create_table(
        "run",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("assigned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("placements", postgresql.JSONB(), nullable=False),
        sa.Column("start_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resume_from", postgresql.JSONB(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempt_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempt_deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("preempt_reason", postgresql.JSONB(), nullable=True),
        sa.Column("kill_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("kill_reason", postgresql.JSONB(), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=True),
        sa.Column("exit", postgresql.JSONB(), nullable=True),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "attempt", name=op.f("run_pkey")),
        schema="gateway",
    )
    op.create_index(op.f("run_live_idx"), "run", ["live"], unique=False, schema="gateway")
    op.create_table(
        "task",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("labels", postgresql.JSONB(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=True),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("priority_order", sa.BigInteger(), nullable=False),
        sa.Column("priority_revision", sa.BigInteger(), nullable=False),
        sa.Column("goal", sa.Text(collation="C"), nullable=False),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("state_version", sa.BigInteger(), nullable=False),
        sa.Column("reason", postgresql.JSONB(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("observed_revision", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checkpoint", postgresql.JSONB(), nullable=True),
        sa.Column("exit", postgresql.JSONB(), nullable=True),
        sa.Column("held_gpus", sa.BigInteger(), nullable=False),
        sa.Column("held_nodes", sa.BigInteger(), nullable=False),
        sa.Column("attempts_without_progress", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("task_pkey")),
        schema="gateway",
    )
    op.create_index(op.f("task_name_idx"), "task", ["name"], unique=False, schema="gateway")
    op.create_index(op.f("task_owner_idx"), "task", ["owner"], unique=False, schema="gateway")
    op.create_index(op.f("task_state_idx"), "task", ["state"], unique=False, schema="gateway")
    op.create_table(
        "team",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("team_pkey")),
        schema="gateway",
    )
    op.create_table(
        "token",
        sa.Column("token_hash", sa.Text(collation="C"), nullable=False),
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("user", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("created_by", sa.Text(collation="C"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("token_pkey")),
        sa.UniqueConstraint("id", name=op.f("token_id_key")),
        schema="gateway",
    )
    op.create_index(op.f("token_user_idx"), "token", ["user"], unique=False, schema="gateway")
    op.create_table(
        "user",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("role", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("user_pkey")),
        schema="gateway",
    )
