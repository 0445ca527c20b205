"""People's login: browser sessions, accounts of a login provider, passwords, one-time codes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def _create(
    name: str, key: tuple[str, ...], texts: tuple[str, ...], times: tuple[str, ...]
) -> None:
    op.create_table(
        name,
        *(sa.Column(column, TEXT, nullable=False) for column in texts),
        *(sa.Column(column, TIMESTAMP, nullable=False) for column in times),
        sa.PrimaryKeyConstraint(*key, name=f"{name}_pkey"),
        schema="gateway",
    )


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    _create(
        "session",
        ("secret_hash",),
        ("secret_hash", "id", "user", "address", "made_by"),
        ("created_at", "expires_at"),
    )
    op.create_unique_constraint("session_id_key", "session", ["id"], schema="gateway")
    _create(
        "externalidentity", ("issuer", "subject"), ("issuer", "subject", "user"), ("linked_at",)
    )
    _create("password", ("user",), ("user", "hash", "changed_by"), ("changed_at",))
    _create("loginuse", ("state_hash",), ("state_hash",), ("used_at",))
    _create(
        "logincode", ("code_hash",), ("code_hash", "user", "challenge", "name"), ("expires_at",)
    )
    for table in ("session", "externalidentity", "logincode"):
        op.create_index(f"{table}_user_idx", table, ["user"], schema="gateway")
