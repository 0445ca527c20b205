"""The rows of an event that a service has set apart; every schema has tables of them.

``libs.service.dead_letters`` writes and replays them. The body, which may be large, has a row of
its own, so that nothing reads it that does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Direction(Enum):
    """Where the event was on its way to."""

    # The service could not handle it.
    RECEIVED = "received"
    # The bus does not take it.
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One event, as it is on the bus but for its body, and the reason why it was set apart."""

    id: str
    direction: Direction
    event_id: str
    type: str
    subject: str
    headers: Mapping[str, str]
    # Bytes of the body.
    size: int
    reason: str
    set_apart_at: datetime
    # How many replays have failed.
    replays: int = 0
    # Since when a replay is requested; None: it is not.
    replay_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterBody:
    """The body of the letter with this id."""

    id: str
    body: bytes
