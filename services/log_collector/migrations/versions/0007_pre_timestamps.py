"""How many time stamps of an output are kept for certain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "output",
        sa.Column("timestamps", sa.BigInteger(), nullable=False, server_default="0"),
        schema="log_collector",
    )
