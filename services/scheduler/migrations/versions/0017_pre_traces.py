"""Where the traces of tasks go on."""

from __future__ import annotations

from libs.store.alembic.steps import keep_traces_of_tasks

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    keep_traces_of_tasks()
