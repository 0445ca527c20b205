"""Notifications by mail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead. What an older version adds
    meanwhile is for webhooks."""
    webhook, empty = sa.text("'NOTIFICATION_CHANNEL_WEBHOOK'"), sa.text("''")
    for table, column, default in (
        ("notification", "channel", webhook),
        ("message", "channel", webhook),
        ("message", "mail_id", empty),
    ):
        made = sa.Column(column, TEXT, nullable=False, server_default=default)
        op.add_column(table, made, schema="monitor")
    op.create_index(
        "message_due_by",
        "message",
        ["channel", "due_at"],
        schema="monitor",
        postgresql_where=sa.text("stage = 'waiting'"),
    )
    op.create_table(
        "mailbox",
        sa.Column("owner", TEXT, nullable=False),
        sa.Column("rate_until", TIMESTAMP, nullable=False),
        sa.Column("held_until", TIMESTAMP, nullable=True),
        sa.Column("failing_since", TIMESTAMP, nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("mailbox_pkey")),
        schema="monitor",
    )
    op.create_index("mailbox_rate_until_idx", "mailbox", ["rate_until"], schema="monitor")
