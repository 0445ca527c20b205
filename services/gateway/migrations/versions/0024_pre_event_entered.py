"""Events know when they were entered, from which their age counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TIMESTAMP

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    column = sa.Column("entered_at", TIMESTAMP, nullable=True)
    op.add_column("event", column, schema="gateway")
