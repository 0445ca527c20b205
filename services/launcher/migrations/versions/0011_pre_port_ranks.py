"""Pre port ranks: which rank of its run a leased port is for. Before, it was always the first."""

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
        "masterport",
        sa.Column("rank", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="launcher",
    )
