"""Quota rows are caps or grants, and may expire. The rows of before are caps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    no = sa.text("false")
    for column in (
        sa.Column("grant", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("unlimited", sa.Boolean(), nullable=False, server_default=no),
        sa.Column("level_max", TEXT, nullable=False, server_default=sa.text("''")),
        sa.Column("expires_at", TIMESTAMP, nullable=True),
    ):
        op.add_column("quota", column, schema="gateway")
    # One name may have a cap and a grant.
    op.drop_constraint("quota_pkey", "quota", schema="gateway", type_="primary")
    op.create_primary_key(
        "quota_pkey",
        "quota",
        ["group", "user", "team", "priority", "unit", "grant"],
        schema="gateway",
    )
