"""Who set a task's goal. What an earlier version stored counts as the owner's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "earlyfact"):
        op.add_column(
            table,
            sa.Column("goal_by", sa.Text(collation="C"), nullable=False, server_default=""),
            schema="scheduler",
        )
