"""When the program of a run first asked whether it should leave."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run",
        sa.Column("listening_at", sa.DateTime(timezone=True), nullable=True),
        schema="gateway",
    )
