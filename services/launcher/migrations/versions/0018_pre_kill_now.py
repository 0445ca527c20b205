"""Runs that their owners want to end at once. Before, every kill was at once on one machine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run",
        sa.Column("kill_now", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema="launcher",
    )
