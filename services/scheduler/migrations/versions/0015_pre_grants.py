"""Quota rows are caps or grants, and may expire. The rows of before are caps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0015"
down_revision = "0014"
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
    ):
        op.add_column("limit", column, schema="scheduler")
    # One name may have a cap and a grant.
    op.drop_constraint("limit_pkey", "limit", schema="scheduler", type_="primary")
    op.create_primary_key(
        "limit_pkey", "limit", ["group", "user", "team", "priority", "grant"], schema="scheduler"
    )
