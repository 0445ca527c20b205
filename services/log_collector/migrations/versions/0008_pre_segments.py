"""Sealed segments of outputs, the owners of runs, and what their output takes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SCHEMA = "log_collector"


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "segment",
        sa.Column("task_id", sa.Text(collation="C"), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.Text(collation="C"), nullable=False),
        sa.CheckConstraint("size >= 0", name="segment_size_counts"),
        sa.PrimaryKeyConstraint("task_id", "attempt", "rank", "number", name="segment_pkey"),
        schema=SCHEMA,
    )
    op.create_index(
        "segment_place_idx",
        "segment",
        ["place"],
        unique=False,
        schema=SCHEMA,
        postgresql_where=sa.text("place <> 'bucket'"),
    )
    op.create_table(
        "owner",
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("stored_bytes > 0", name="owner_stored_counts"),
        sa.PrimaryKeyConstraint("owner", name="owner_pkey"),
        schema=SCHEMA,
    )
    op.create_index(
        "owner_stored_bytes_idx", "owner", ["stored_bytes"], unique=False, schema=SCHEMA
    )
    for name, kind, empty in (
        ("owner", sa.Text(collation="C"), ""),
        ("sealed", sa.Boolean(), "false"),
        ("stored_bytes", sa.BigInteger(), "0"),
        ("written", sa.Boolean(), "false"),
    ):
        op.add_column(
            "run", sa.Column(name, kind, nullable=False, server_default=empty), schema=SCHEMA
        )
    for name, columns, where in (
        ("run_unsealed", ["exited_at"], "collected AND NOT sealed"),
        ("run_unwritten", ["exited_at"], "collected AND NOT written"),
        ("run_of_owner", ["owner", "exited_at"], "collected"),
    ):
        op.create_index(
            name,
            "run",
            columns,
            unique=False,
            schema=SCHEMA,
            postgresql_where=sa.text(where),
        )
