"""Pre series."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "series",
        sa.Column("subject", sa.Text(collation="C"), nullable=False),
        sa.Column("step_seconds", sa.BigInteger(), nullable=False),
        sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("part", sa.Text(collation="C"), nullable=False),
        sa.Column("first_rank", sa.BigInteger(), nullable=False),
        sa.Column("last_rank", sa.BigInteger(), nullable=False),
        sa.Column("folded", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(
            "subject", "step_seconds", "begins_at", "part", name=op.f("series_pkey")
        ),
        schema="monitor",
    )
    op.create_index("series_expires_at_idx", "series", ["expires_at"], schema="monitor")
    op.create_index(
        "series_unfolded",
        "series",
        ["step_seconds", "begins_at"],
        schema="monitor",
        postgresql_where=sa.text("NOT folded"),
    )
