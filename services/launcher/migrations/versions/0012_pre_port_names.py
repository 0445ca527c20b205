"""Pre port names: which declared port of its rank a leased port is. Before, there were none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "masterport",
        sa.Column("name", sa.Text(collation="C"), nullable=False, server_default=sa.text("''")),
        schema="launcher",
    )
