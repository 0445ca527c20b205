"""What is remembered of a task's last run has its specification: log-collector may ask for the
secrets later. Of runs that were forgotten before, none is known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.add_column(
        "pastrun", sa.Column("spec", postgresql.JSONB(), nullable=True), schema="launcher"
    )
