"""Debug mode of tasks and runs, and the ranks that ended in it. Before, there was no such mode."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_FALSE, _ZERO = sa.false(), sa.text("0")


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted", "run"):
        op.add_column(
            table,
            sa.Column("debug", sa.Boolean(), nullable=False, server_default=_FALSE),
            schema="gateway",
        )
    for table in ("task", "accepted"):
        op.add_column(
            table,
            sa.Column("mode_revision", sa.BigInteger(), nullable=False, server_default=_ZERO),
            schema="gateway",
        )
    op.add_column(
        "run",
        sa.Column(
            "ended_ranks", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
        ),
        schema="gateway",
    )
