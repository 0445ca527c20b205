"""Whether a task is in debug mode, and who changed that. Before, there was no such mode."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("debug", sa.Boolean(), sa.false()),
    ("mode_revision", sa.BigInteger(), sa.text("1")),
    ("mode_changed_by", sa.Text(collation="C"), ""),
)


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name, type_, value in _COLUMNS:
        op.add_column(
            "task",
            sa.Column(name, type_, nullable=False, server_default=value),
            schema="submit",
        )
        op.alter_column("task", name, server_default=None, schema="submit")
    op.add_column(
        "task",
        sa.Column("mode_changed_at", sa.DateTime(timezone=True), nullable=True),
        schema="submit",
    )
