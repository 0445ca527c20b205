"""Browser sessions that are made with a token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from libs.store.alembic.steps import TEXT

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    made_with = sa.Column("token_id", TEXT, nullable=False, server_default=sa.text("''"))
    scopes = sa.Column(
        "scopes", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
    )
    op.add_column("session", made_with, schema="gateway")
    op.add_column("session", scopes, schema="gateway")
