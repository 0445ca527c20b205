"""Pre dead letter: events that were set apart, to be replayed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXT = sa.Text(collation="C")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "dead_letter",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("direction", TEXT, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("headers", postgresql.JSONB(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("set_apart_at", MOMENT, nullable=False),
        sa.Column("replays", sa.BigInteger(), nullable=False),
        sa.Column("replay_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("dead_letter_pkey")),
        schema="gateway",
    )
    op.create_index(
        op.f("dead_letter_set_apart_at_idx"),
        "dead_letter",
        ["set_apart_at"],
        unique=False,
        schema="gateway",
    )
