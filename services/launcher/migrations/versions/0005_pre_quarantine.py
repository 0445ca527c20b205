"""Nodes on which starts fail in a row, and where a run could not start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, name, kind, empty in (
        ("run", "failed_nodes", postgresql.JSONB(), "'[]'"),
        ("inventorynode", "failed_starts", sa.BigInteger(), "0"),
        ("inventorynode", "failed_task", sa.Text(collation="C"), "''"),
    ):
        op.add_column(
            table,
            sa.Column(name, kind, nullable=False, server_default=sa.text(empty)),
            schema="launcher",
        )
    op.add_column(
        "inventorynode",
        sa.Column("quarantined_until", sa.DateTime(timezone=True), nullable=True),
        schema="launcher",
    )
