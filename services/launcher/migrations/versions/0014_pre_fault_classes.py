"""Why the launcher ends a run, as facts: the rank that failed, and the fault of its launch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "run", sa.Column("end_rank", postgresql.JSONB(), nullable=True), schema="launcher"
    )
    op.add_column(
        "run", sa.Column("end_fault", sa.Text(collation="C"), nullable=True), schema="launcher"
    )
