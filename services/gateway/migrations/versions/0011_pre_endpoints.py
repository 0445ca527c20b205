"""Pre endpoints: where the declared ports of a live run are reached."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted", "run"):
        op.add_column(
            table,
            sa.Column(
                "endpoints", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")
            ),
            schema="gateway",
        )
