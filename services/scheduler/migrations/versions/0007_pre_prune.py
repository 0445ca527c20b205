"""Old rows are found by their age."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import index_inbox_by_age

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    index_inbox_by_age()
    op.add_column(
        "inventory",
        sa.Column("version", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema="scheduler",
    )
