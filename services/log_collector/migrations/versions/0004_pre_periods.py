"""The outbox counts periods."""

from __future__ import annotations

from libs.store.alembic.steps import number_outbox_periods

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    number_outbox_periods("log_collector")
