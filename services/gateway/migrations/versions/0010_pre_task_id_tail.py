"""Tasks are found by the last characters of their ids."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_index("task_id_tail", "task", [sa.text("reverse(task_id)")], schema="gateway")
