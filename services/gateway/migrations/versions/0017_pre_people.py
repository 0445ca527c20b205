"""Roles beside administrator and user, scopes and last use of tokens, archived users, defaults for
submissions, and more of each change in the audit trail."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    no, empty = sa.text("false"), sa.text("''")
    op.execute("""UPDATE gateway."user" SET role = 'user' WHERE role = 'member'""")
    for table, column in (
        ("user", sa.Column("disabled_by", TEXT, nullable=False, server_default=empty)),
        ("user", sa.Column("disabled_at", TIMESTAMP, nullable=True)),
        ("user", sa.Column("archived", sa.Boolean(), nullable=False, server_default=no)),
        ("user", sa.Column("default_group", TEXT, nullable=False, server_default=empty)),
        ("user", sa.Column("default_priority", TEXT, nullable=False, server_default=empty)),
        ("team", sa.Column("default_group", TEXT, nullable=False, server_default=empty)),
        ("team", sa.Column("default_priority", TEXT, nullable=False, server_default=empty)),
        (
            "token",
            sa.Column(
                "scopes", postgresql.JSONB(), nullable=False, server_default=sa.text("'[]'::jsonb")
            ),
        ),
        ("audit", sa.Column("address", TEXT, nullable=False, server_default=empty)),
        ("audit", sa.Column("token", TEXT, nullable=False, server_default=empty)),
        ("audit", sa.Column("before", postgresql.JSONB(), nullable=True)),
        ("audit", sa.Column("after", postgresql.JSONB(), nullable=True)),
    ):
        op.add_column(table, column, schema="gateway")
    op.create_index("audit_who_idx", "audit", ["who"], schema="gateway")
    op.create_table(
        "tokenuse",
        sa.Column("token_id", TEXT, nullable=False),
        sa.Column("used_at", TIMESTAMP, nullable=False),
        sa.Column("address", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("token_id", name=op.f("tokenuse_pkey")),
        schema="gateway",
    )
