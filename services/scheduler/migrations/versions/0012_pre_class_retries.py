"""Retries after failures of classes that have a limit of their own. Before, there were none."""

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
    op.add_column(
        "task",
        sa.Column("class_retries", postgresql.JSONB(), nullable=True),
        schema="scheduler",
    )
