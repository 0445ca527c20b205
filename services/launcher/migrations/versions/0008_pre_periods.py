"""The outbox counts periods."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0008"
down_revision = "0007"
upgrade = steps.number_outbox_periods
