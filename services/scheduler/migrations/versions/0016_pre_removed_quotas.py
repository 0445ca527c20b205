"""Removed caps and grants are deleted by age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TIMESTAMP

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    # Nobody noted when they were removed: they are kept for the whole time from now on.
    op.add_column("limit", sa.Column("changed_at", TIMESTAMP, nullable=True), schema="scheduler")
    op.execute('UPDATE scheduler."limit" SET changed_at = now() WHERE removed')
