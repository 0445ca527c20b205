"""The outbox counts periods."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0004"
down_revision = "0003"
upgrade = steps.number_outbox_periods
