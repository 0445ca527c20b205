"""The outbox counts periods; removed nodes and early facts have an age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import number_outbox_periods

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    number_outbox_periods()
    for table, column in (("node", "changed_at"), ("earlyfact", "first_at")):
        op.add_column(
            table,
            sa.Column(column, sa.DateTime(timezone=True), nullable=True),
            schema="scheduler",
        )
    # Nobody noted since when they are there: they are kept for the whole time from now on.
    op.execute("UPDATE scheduler.node SET changed_at = now() WHERE removed")
    op.execute("UPDATE scheduler.earlyfact SET first_at = now()")
