"""Mail addresses of users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    column = sa.Column("mail", TEXT, nullable=False, server_default=sa.text("''"))
    op.add_column("user", column, schema="gateway")
