"""Nodes on which the last starts of a task failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "task",
        sa.Column("avoids", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")),
        schema="scheduler",
    )
