"""Events know when they were entered, from which their age counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    column = sa.Column("entered_at", sa.DateTime(timezone=True), nullable=True)
    op.add_column("event", column, schema="gateway")
