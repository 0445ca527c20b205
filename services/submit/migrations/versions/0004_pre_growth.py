"""The outbox counts periods; removed nodes have an age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import number_outbox_periods

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    number_outbox_periods()
    op.add_column(
        "node", sa.Column("changed_at", sa.DateTime(timezone=True), nullable=True), schema="submit"
    )
    # Nobody noted when they were removed: they are kept for the whole time from now on.
    op.execute("UPDATE submit.node SET changed_at = now() WHERE removed")
