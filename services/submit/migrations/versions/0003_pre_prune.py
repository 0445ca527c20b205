"""Old rows are found by their age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import index_inbox_by_age

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    index_inbox_by_age()
    op.add_column(
        "inventory",
        sa.Column("version", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="submit",
    )
    op.add_column(
        "task", sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True), schema="submit"
    )
    # Nobody noted when they ended: they are kept for the whole time from now on.
    op.execute("UPDATE submit.task SET ended_at = now() WHERE ended")
    op.create_index(
        "task_ended",
        "task",
        ["ended_at"],
        schema="submit",
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
