"""Old rows are found by their age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import index_inbox_by_age

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    index_inbox_by_age()
    op.create_index(
        "task_finished",
        "task",
        ["finished_at"],
        schema="gateway",
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
