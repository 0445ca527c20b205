"""What disciplines note of tasks and pools, promises, and what ended tasks teach."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_AT = sa.DateTime(timezone=True)


def _json(default: str) -> dict[str, object]:
    return {"type_": postgresql.JSONB(), "nullable": False, "server_default": sa.text(default)}


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name in ("preempt_requested_at", "unserved_since"):
        op.add_column("task", sa.Column(name, _AT, nullable=True), schema="scheduler")
    for name in ("expected_seconds", "move_seconds"):
        op.add_column("task", sa.Column(name, sa.Double(), nullable=True), schema="scheduler")
    for name, default in (("promised", "'[]'::jsonb"), ("marks", "'{}'::jsonb")):
        op.add_column("task", sa.Column(name, **_json(default)), schema="scheduler")
        op.alter_column("task", name, server_default=None, schema="scheduler")
    op.add_column(
        "endedtask",
        sa.Column("run_seconds", sa.Double(), nullable=False, server_default="0"),
        schema="scheduler",
    )
    op.alter_column("endedtask", "run_seconds", server_default=None, schema="scheduler")
    op.create_table(
        "book",
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("tokens_at", _AT, nullable=True),
        sa.Column("grants", sa.Double(), nullable=False),
        sa.Column("grants_at", _AT, nullable=True),
        sa.Column("load", sa.Double(), nullable=False),
        sa.Column("sampled_at", _AT, nullable=True),
        sa.Column("scale", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("group", name=op.f("book_pkey")),
        schema="scheduler",
    )
    op.create_table(
        "memory",
        sa.Column("group", sa.Text(collation="C"), nullable=False),
        sa.Column("saved_at", _AT, nullable=False),
        sa.Column("learned", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("group", name=op.f("memory_pkey")),
        schema="scheduler",
    )
