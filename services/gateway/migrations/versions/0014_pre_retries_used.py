"""How many of a task's retries are used. Before, only the scheduler knew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted"):
        op.add_column(
            table,
            sa.Column("retries_used", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
            schema="gateway",
        )
        op.add_column(
            table,
            sa.Column("class_retries", postgresql.JSONB(), nullable=True),
            schema="gateway",
        )
