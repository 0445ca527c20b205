"""Refused events stay in the outbox; the bodies of dead letters lie apart."""

from __future__ import annotations

from libs.store.alembic.steps import keep_refused_events

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    keep_refused_events("launcher")
