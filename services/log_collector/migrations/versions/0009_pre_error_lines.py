"""Which failed runs are to be searched for error lines, and in which ranks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run",
        sa.Column("errors_wanted", sa.Boolean(), nullable=False, server_default="false"),
        schema="log_collector",
    )
    op.add_column(
        "run",
        sa.Column("error_ranks", JSONB(), nullable=False, server_default="[]"),
        schema="log_collector",
    )
    op.create_index(
        "run_errors",
        "run",
        ["task_id", "attempt"],
        schema="log_collector",
        postgresql_where=sa.text("errors_wanted"),
    )
