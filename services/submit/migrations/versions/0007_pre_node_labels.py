"""Nodes have labels and taints, and nodes with different taints look different."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    # Empty: not known, until the node is heard of again. What is not known refuses nothing.
    op.add_column("node", sa.Column("labels", postgresql.JSONB(), nullable=True), schema="submit")
    op.add_column("node", sa.Column("taints", postgresql.JSONB(), nullable=True), schema="submit")
    op.add_column(
        "nodeshape",
        sa.Column(
            "taints", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
        ),
        schema="submit",
    )
