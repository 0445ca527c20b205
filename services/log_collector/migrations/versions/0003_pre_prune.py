"""Old rows are found by their age."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0003"
down_revision = "0002"
upgrade = steps.index_inbox_by_age
