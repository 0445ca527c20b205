"""The last report about a run's delay. Of runs of before, none is known: the next one is published
again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column("run", sa.Column("delay", postgresql.JSONB(), nullable=True), schema="launcher")
