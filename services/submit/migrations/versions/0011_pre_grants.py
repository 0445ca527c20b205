"""Quota rows are caps or grants. The rows of before are caps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    no, none = sa.text("false"), sa.text("'PRIORITY_UNSPECIFIED'")
    for column in (
        sa.Column("grant", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("unlimited", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("level_max", TEXT, nullable=False, server_default=none),
    ):
        op.add_column("quota", column, schema="submit")
