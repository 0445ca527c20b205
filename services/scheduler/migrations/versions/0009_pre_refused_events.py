"""Keep refused events in the outbox; move the bodies of dead letters to their own table."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0009"
down_revision = "0008"
upgrade = steps.keep_refused_events
