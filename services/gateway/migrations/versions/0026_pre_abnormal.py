"""The rules that find a task abnormal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted"):
        op.add_column(
            table,
            sa.Column(
                "abnormal", postgresql.JSONB(), nullable=False, server_default=sa.text("'{}'")
            ),
            schema="gateway",
        )
