"""Whether the program of a live run listens; goals that end a run at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column("task", sa.Column("listens", sa.Boolean(), nullable=True), schema="scheduler")
    for table in ("task", "earlyfact"):
        op.add_column(
            table,
            sa.Column("goal_now", sa.Boolean(), nullable=False, server_default=sa.false()),
            schema="scheduler",
        )
