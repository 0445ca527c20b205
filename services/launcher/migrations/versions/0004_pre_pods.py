"""Pre pods: what was known when a run was ended, more causes, and nodes closed by their cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table, name, kind, empty in (
        ("run", "end_note", sa.Text(collation="C"), "''"),
        ("inventorynode", "closed", sa.Boolean(), "false"),
    ):
        op.add_column(
            table,
            sa.Column(name, kind, nullable=False, server_default=sa.text(empty)),
            schema="launcher",
        )
        # Only the rows that there are need it.
        op.alter_column(table, name, server_default=None, schema="launcher")
