"""The outbox counts periods; reports go to the end of a history first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from libs.store.alembic.steps import number_outbox_periods

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    number_outbox_periods()
    op.create_table(
        "metrictail",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("latest", postgresql.JSONB(), nullable=False),
        sa.Column("points", postgresql.JSONB(), nullable=False),
        sa.Column("stride", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("points_before", sa.BigInteger(), nullable=False),
        sa.Column("values_before", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "rank", name="metrictail_pkey"),
        schema="gateway",
    )
