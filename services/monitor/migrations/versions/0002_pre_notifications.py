"""Pre notifications."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "message",
        sa.Column("id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("occasion", sa.Text(collation="C"), nullable=False),
        sa.Column("body", sa.Text(collation="C"), nullable=False),
        sa.Column("happened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stage", sa.Text(collation="C"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(collation="C"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("message_pkey")),
        schema="monitor",
    )
    op.create_index(
        "message_due",
        "message",
        ["due_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("stage = 'waiting'"),
    )
    op.create_index(
        "message_of",
        "message",
        ["owner", "name", "stage", "due_at"],
        unique=False,
        schema="monitor",
    )
    op.create_index(
        "message_old",
        "message",
        ["due_at"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("stage <> 'waiting'"),
    )
    op.create_table(
        "notification",
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("url", sa.Text(collation="C"), nullable=False),
        sa.Column("occasions", sa.Text(collation="C"), nullable=False),
        sa.Column("tasks", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("secret", sa.Text(collation="C"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name=op.f("notification_pkey")),
        schema="monitor",
    )
    op.create_table(
        "receiver",
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("held_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(collation="C"), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", name=op.f("receiver_pkey")),
        schema="monitor",
    )
    op.add_column(
        "task",
        sa.Column("name", sa.Text(collation="C"), nullable=False, server_default=sa.text("''")),
        schema="monitor",
    )
    op.alter_column("task", "name", server_default=None, schema="monitor")
    op.add_column(
        "task",
        sa.Column(
            "reason",
            sa.Text(collation="C"),
            nullable=False,
            server_default=sa.text("'REASON_CODE_UNSPECIFIED'"),
        ),
        schema="monitor",
    )
    op.alter_column("task", "reason", server_default=None, schema="monitor")
    op.add_column(
        "task",
        sa.Column("queued_since", sa.DateTime(timezone=True), nullable=True),
        schema="monitor",
    )
    op.add_column(
        "task",
        sa.Column(
            "waiting_notified", sa.Boolean(), nullable=False, server_default=sa.text("false")
        ),
        schema="monitor",
    )
    op.alter_column("task", "waiting_notified", server_default=None, schema="monitor")
    op.add_column(
        "task",
        sa.Column("quota_notified", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        schema="monitor",
    )
    op.alter_column("task", "quota_notified", server_default=None, schema="monitor")
    op.create_index(
        "task_waiting",
        "task",
        ["queued_since"],
        unique=False,
        schema="monitor",
        postgresql_where=sa.text("queued_since IS NOT NULL AND NOT waiting_notified"),
    )
