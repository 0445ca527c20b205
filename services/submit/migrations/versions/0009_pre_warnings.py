"""Pre warnings: what a task was accepted with and what has no effect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "task",
        sa.Column("warnings", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")),
        schema="submit",
    )
