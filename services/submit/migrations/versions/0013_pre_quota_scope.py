"""The rows that hold for a task are found without reading all of them."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_index("quota_scope", "quota", ["group", "user", "team"], schema="submit")
