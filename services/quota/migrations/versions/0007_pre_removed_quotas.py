"""Removed caps and grants are deleted by age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_index(
        "quota_removed",
        "quota",
        ["changed_at"],
        schema="quota",
        postgresql_where=sa.text("removed"),
    )
