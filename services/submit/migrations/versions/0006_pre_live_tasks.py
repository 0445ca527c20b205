"""Each owner's live tasks are counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "owner",
        sa.Column("owner", sa.Text(collation="C"), nullable=False),
        sa.Column("live_tasks", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="owner_pkey"),
        schema="submit",
    )
    # A leader from before, which counts nothing, may still make or end a few tasks after this.
    op.execute(
        "INSERT INTO submit.owner (owner, live_tasks)"
        " SELECT owner, count(*) FROM submit.task WHERE NOT ended GROUP BY owner"
    )
