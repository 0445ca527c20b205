"""Pre warnings: what a task was accepted with and what has no effect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted"):
        op.add_column(
            table,
            sa.Column(
                "warnings", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")
            ),
            schema="gateway",
        )
