"""The usage ledger finds what a user or a team held."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for column in ("user", "team"):
        op.create_index(f"usage_{column}_idx", "usage", [column], schema="gateway")
