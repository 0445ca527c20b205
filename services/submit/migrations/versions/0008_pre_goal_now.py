"""Goals that end a run at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "task",
        sa.Column("goal_now", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema="submit",
    )
