"""Pre run delayed: why an attempt that was launched does not run yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column("run", sa.Column("delayed", postgresql.JSONB(), nullable=True), schema="gateway")
