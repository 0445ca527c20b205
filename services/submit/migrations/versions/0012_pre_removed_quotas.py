"""Removed caps and grants are deleted by age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TIMESTAMP

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    # Nobody noted when they were removed: they are kept for the whole time from now on.
    op.add_column("quota", sa.Column("changed_at", TIMESTAMP, nullable=True), schema="submit")
    op.execute('UPDATE submit."quota" SET changed_at = now() WHERE removed')
