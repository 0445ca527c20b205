"""How many bytes of an output are not kept, because the rest of their line overwrote them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name, kind, empty in (
        ("skipped", sa.BigInteger(), "0"),
        ("before", sa.LargeBinary(), ""),
        ("binary", sa.Boolean(), "false"),
    ):
        op.add_column(
            "output",
            sa.Column(name, kind, nullable=False, server_default=empty),
            schema="log_collector",
        )
