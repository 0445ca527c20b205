"""Events that were set apart are kept, to be replayed."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0006"
down_revision = "0005"
upgrade = steps.keep_dead_letters
