"""Tasks that go on with others, life states, and runs that handed their nodes over on their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for table in ("task", "accepted"):
        op.add_column(
            table,
            sa.Column(
                "chain", sa.Text(collation="C"), nullable=False, server_default=sa.text("''")
            ),
            schema="gateway",
        )
        op.add_column(
            table, sa.Column("life_state", postgresql.JSONB(), nullable=True), schema="gateway"
        )
    # Until now each task was by itself.
    op.execute("UPDATE gateway.task SET chain = task_id")
    op.execute("UPDATE gateway.accepted SET chain = task_id")
    op.create_index("task_chain_idx", "task", ["chain"], schema="gateway")
    op.add_column("run", sa.Column("yielded", postgresql.JSONB(), nullable=True), schema="gateway")
