"""Live tasks whose attempt was not recorded: -1 until the scheduler reports it again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead. To an earlier version -1 is an
    attempt before every other, as 0 is."""
    op.create_index(
        "task_attempt_unknown",
        "task",
        ["task_id"],
        schema="submit",
        postgresql_where=sa.text("attempt < 0"),
    )
    op.execute(
        "UPDATE submit.task SET attempt = -1 WHERE NOT ended AND attempt = 0 AND state_version > 0"
    )
