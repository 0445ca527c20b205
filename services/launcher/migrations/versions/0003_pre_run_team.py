"""Pre run team: whose team a run is for, which the policy of pods asks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run",
        sa.Column("team", sa.Text(collation="C"), nullable=False, server_default=sa.text("''")),
        schema="launcher",
    )
    # Only the rows that there are need it.
    op.alter_column("run", "team", server_default=None, schema="launcher")
