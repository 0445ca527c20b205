"""Messages belong to the notification that they were put for, and that to its owner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TIMESTAMP

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, column in (
        ("notification", "made_at"),
        ("notification", "owner_added_at"),
        ("message", "notification_made_at"),
    ):
        op.add_column(table, sa.Column(column, TIMESTAMP, nullable=True), schema="monitor")
    op.create_index(
        "message_oldest",
        "message",
        ["channel", "happened_at"],
        schema="monitor",
        postgresql_where=sa.text("stage = 'waiting'"),
    )
