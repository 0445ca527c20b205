"""Rows are caps or grants, and may expire. The rows of before are caps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    no, none = sa.text("false"), sa.text("'PRIORITY_UNSPECIFIED'")
    for column in (
        sa.Column("grant", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("unlimited", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("level_max", TEXT, nullable=False, server_default=none),
        sa.Column("expires_at", TIMESTAMP, nullable=True),
        sa.Column("expired", sa.Boolean(), nullable=False, server_default=no),
    ):
        op.add_column("quota", column, schema="quota")
    op.create_check_constraint(
        "quota_only_grants_are_unlimited", "quota", '"grant" OR NOT unlimited', schema="quota"
    )
    op.create_index(
        "quota_expires",
        "quota",
        ["expires_at"],
        schema="quota",
        postgresql_where=sa.text("expires_at IS NOT NULL AND NOT removed"),
    )
