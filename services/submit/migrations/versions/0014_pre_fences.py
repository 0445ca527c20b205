"""Fenced commands: the attempt that they name, and those that were carried out."""

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
    op.add_column(
        "task",
        sa.Column("attempt", sa.BigInteger(), nullable=False, server_default="0"),
        schema="submit",
    )
    op.add_column(
        "task",
        sa.Column("requests", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")),
        schema="submit",
    )
