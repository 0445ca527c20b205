"""Pre node marks: labels and taints that operators gave the nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name, empty in (("labels", "'{}'"), ("taints", "'[]'")):
        op.add_column(
            "inventorynode",
            sa.Column(name, postgresql.JSONB(), nullable=False, server_default=sa.text(empty)),
            schema="launcher",
        )
        # Only the rows that there are need it.
        op.alter_column("inventorynode", name, server_default=None, schema="launcher")
