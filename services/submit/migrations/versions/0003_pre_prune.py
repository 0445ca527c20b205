"""Old rows are found by their age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_index("inbox_seen_idx", "inbox", ["seen_at"], schema="submit")
    # No statement asks for it any more, and the code before this one is served by the new index.
    op.drop_index("inbox_seen_at_idx", table_name="inbox", schema="submit")
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
