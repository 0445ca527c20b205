"""Rules that find abnormal tasks: facts, findings, actions, and a clock that does not jump."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "action",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("finding_id", sa.Text(collation="C"), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("rule", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.Text(collation="C"), nullable=False),
        sa.Column("node_id", sa.Text(collation="C"), nullable=False),
        sa.Column("outcome", sa.Text(collation="C"), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detail", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("acted_s", sa.Double(), nullable=True),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("action_pkey")),
        schema="monitor",
    )
    op.create_index(
        "action_acted",
        "action",
        ["acted_s"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("acted_s IS NOT NULL"),
    )
    op.create_index(
        "action_finding_id_idx",
        "action",
        ["finding_id"],
        unique=False,
        schema="monitor",
        postgresql_where=None,
    )
    op.create_index(
        "action_old",
        "action",
        ["decided_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("outcome <> 'ABNORMAL_OUTCOME_WAITING'"),
    )
    op.create_index(
        "action_waiting",
        "action",
        ["decided_at", "id"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("outcome = 'ABNORMAL_OUTCOME_WAITING'"),
    )
    op.create_table(
        "facts",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("watched", sa.Boolean(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("attempts_without_progress", sa.BigInteger(), nullable=False),
        sa.Column("ran_s", sa.Double(), nullable=False),
        sa.Column("runs_since_s", sa.Double(), nullable=True),
        sa.Column("started", sa.Boolean(), nullable=False),
        sa.Column("delayed_ranks", sa.BigInteger(), nullable=False),
        sa.Column("delay_while_running", sa.Boolean(), nullable=False),
        sa.Column("delay_noted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delay_detail", sa.Text(collation="C"), nullable=False),
        sa.Column("ended_ranks", postgresql.JSONB(), nullable=False),
        sa.Column("missing_since_s", sa.Double(), nullable=True),
        sa.Column("restarts", postgresql.JSONB(), nullable=False),
        sa.Column("restarts_saved", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_no", sa.BigInteger(), nullable=False),
        sa.Column("idle_since_s", sa.Double(), nullable=True),
        sa.Column("quiet_since_s", sa.Double(), nullable=True),
        sa.Column("open", postgresql.JSONB(), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_id", name=op.f("facts_pkey")),
        schema="monitor",
    )
    op.create_index(
        "facts_closed",
        "facts",
        ["closed_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("closed_at IS NOT NULL"),
    )
    op.create_index(
        "facts_watched",
        "facts",
        ["task_id"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("watched"),
    )
    op.create_table(
        "finding",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("rule", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("detail", sa.Text(collation="C"), nullable=False),
        sa.Column("suggestion", sa.Text(collation="C"), nullable=False),
        sa.Column("tagged", sa.Boolean(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("clearing_since_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("finding_pkey")),
        schema="monitor",
    )
    op.create_index(
        "finding_old",
        "finding",
        ["ended_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_index(
        "finding_open",
        "finding",
        ["id"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "finding_owner_id_idx",
        "finding",
        ["owner", "id"],
        unique=False,
        schema="monitor",
        postgresql_where=None,
    )
    op.create_index(
        "finding_task_id_idx",
        "finding",
        ["task_id"],
        unique=False,
        schema="monitor",
        postgresql_where=None,
    )
    op.create_index(
        "finding_team_id_idx",
        "finding",
        ["team", "id"],
        unique=False,
        schema="monitor",
        postgresql_where=None,
    )
    op.create_table(
        "steady_clock",
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("wall_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("steady_clock_pkey")),
        schema="monitor",
    )
