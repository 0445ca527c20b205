"""Pre node labels: labels and taints of nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name in ("labels", "taints"):
        op.add_column(
            "node",
            sa.Column(name, postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")),
            schema="scheduler",
        )
        # Only the rows that there are need it.
        op.alter_column("node", name, server_default=None, schema="scheduler")
