"""Refused events stay in the outbox; the bodies of dead letters lie apart."""

from __future__ import annotations

from libs.store.alembic import steps

revision = "0005"
down_revision = "0004"
upgrade = steps.keep_refused_events
