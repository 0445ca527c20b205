"""How often in a row a task handed its nodes over on its own soon after its start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "task",
        sa.Column("short_yields", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="scheduler",
    )
