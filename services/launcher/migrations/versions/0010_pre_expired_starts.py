"""Runs that were ended because their start took too long, and whose starts failed on a node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, name, kind, empty in (
        ("run", "start_expired", sa.Boolean(), "false"),
        ("inventorynode", "failed_owner", sa.Text(collation="C"), "''"),
    ):
        op.add_column(
            table,
            sa.Column(name, kind, nullable=False, server_default=sa.text(empty)),
            schema="launcher",
        )
