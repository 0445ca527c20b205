"""The outbox counts periods; tasks that never ran have an age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import number_outbox_periods

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    number_outbox_periods()
    op.add_column(
        "task", sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True), schema="quota"
    )
    # Nobody noted when they were heard of: they are kept for the whole time from now on.
    op.execute("UPDATE quota.task SET heard_at = now()")
    op.create_index(
        "task_heard",
        "task",
        ["heard_at"],
        schema="quota",
        postgresql_where=sa.text("heard_at IS NOT NULL"),
    )
