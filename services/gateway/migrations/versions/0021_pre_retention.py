"""Indexes for the deletion of old tokens and of their uses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for column in ("revoked", "expires"):
        op.create_index(
            f"token_{column}",
            "token",
            [f"{column}_at"],
            schema="gateway",
            postgresql_where=sa.text(f"{column}_at IS NOT NULL"),
        )
    op.create_index("tokenuse_used_at_idx", "tokenuse", ["used_at"], schema="gateway")
