"""The event log counts its bytes. Events from before count as none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, column in (("event", "bytes_before"), ("eventhead", "bytes")):
        op.add_column(
            table,
            sa.Column(column, sa.BigInteger(), server_default="0", nullable=False),
            schema="gateway",
        )
