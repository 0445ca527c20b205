"""Pre create."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from libs.store.alembic.steps import create_plumbing

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    create_plumbing()
    op.create_table(
        "inventory",
        sa.Column("runtime", sa.Text(collation="C"), nullable=False),
        sa.Column("listed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("missing", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("runtime", name=op.f("inventory_pkey")),
        schema="submit",
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", name=op.f("node_pkey")),
        schema="submit",
    )
    op.create_table(
        "nodeshape",
        sa.Column("shape", sa.Text(collation="C"), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("shape", name=op.f("nodeshape_pkey")),
        schema="submit",
    )
    op.create_table(
        "quota",
        sa.Column("scope", sa.Text(collation="C"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("user", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("unit", sa.Text(collation="C"), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", name=op.f("quota_pkey")),
        schema="submit",
    )
    op.create_table(
        "task",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("team", sa.Text(collation="C"), nullable=False),
        sa.Column("name", sa.Text(collation="C"), nullable=False),
        sa.Column("client_key", sa.Text(collation="C"), nullable=True),
        sa.Column("asked", postgresql.JSONB(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("goal", sa.Text(collation="C"), nullable=False),
        sa.Column("goal_revision", sa.BigInteger(), nullable=False),
        sa.Column("goal_changed_by", sa.Text(collation="C"), nullable=False),
        sa.Column("goal_changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("priority", sa.Text(collation="C"), nullable=False),
        sa.Column("priority_revision", sa.BigInteger(), nullable=False),
        sa.Column("priority_changed_by", sa.Text(collation="C"), nullable=False),
        sa.Column("priority_changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(collation="C"), nullable=False),
        sa.Column("state_version", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("task_pkey")),
        sa.UniqueConstraint("owner", "client_key", name="task_client_key"),
        schema="submit",
    )
    op.create_index(
        "task_live_name",
        "task",
        ["owner", "name"],
        unique=True,
        schema="submit",
        postgresql_where=sa.text("NOT ended"),
    )
