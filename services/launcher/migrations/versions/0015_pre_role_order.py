"""Pre role order: which ranks of a run have been ready, and which were restarted in their places.
Before, none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name in ("ready_ranks", "restarts"):
        op.add_column(
            "run",
            sa.Column(
                name, postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
            ),
            schema="launcher",
        )
