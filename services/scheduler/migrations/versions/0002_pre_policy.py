"""Pre policy: how node groups are shared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "policy",
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("policy", sa.Text(collation="C"), nullable=False),
        sa.Column("timeshare", postgresql.JSONB(), nullable=False),
        sa.Column("rotation", postgresql.JSONB(), nullable=False),
        sa.Column("demotions", postgresql.JSONB(), nullable=False),
        sa.Column("shares", postgresql.JSONB(), nullable=False),
        sa.Column("virtual_clusters", postgresql.JSONB(), nullable=False),
        sa.Column("protected_seconds", sa.Double(), nullable=True),
        sa.Column("topology", postgresql.JSONB(), nullable=False),
        sa.Column("cross_zone_gangs_max", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("from_file", sa.Boolean(), nullable=False),
        sa.Column("changed_by", sa.Text(collation="C"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("group", name=op.f("policy_pkey")),
        schema="scheduler",
    )
