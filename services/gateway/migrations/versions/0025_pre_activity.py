"""How much of what runs hold they use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column("run", sa.Column("activity", postgresql.JSONB(), nullable=True), schema="gateway")
    op.add_column(
        "usage",
        sa.Column("measured_until", sa.DateTime(timezone=True), nullable=True),
        schema="gateway",
    )
    for name in ("measured_milligpus", "idle_milligpus"):
        op.add_column(
            "usage",
            sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"),
            schema="gateway",
        )
