"""Abnormal tasks: debug mode, nodes of a delay, steps; cordons are found by their node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead. Earlier versions fill no new column."""
    for column in (
        sa.Column("debugs", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column(
            "delay_nodes", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'")
        ),
        sa.Column("stalled_since_s", sa.Double(), nullable=True),
        sa.Column("stalled_step", sa.Double(), nullable=True),
    ):
        op.add_column("facts", column, schema="monitor")
    op.create_index(
        "action_cordon",
        "action",
        ["node_id", "decided_at"],
        schema="monitor",
        postgresql_where=sa.text("action = 'ABNORMAL_ACTION_CORDON'"),
    )
    # Findings are pruned with the facts of their task.
    op.drop_index("finding_old", "finding", schema="monitor")
