"""The row of an event that a service has set apart; every schema has a table of them.

``libs.service.dead_letters`` writes and replays them.
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
    """One event, as it is on the bus, with the reason why it was set apart."""

    id: str
    direction: Direction
    event_id: str
    type: str
    subject: str
    headers: Mapping[str, str]
    body: bytes
    reason: str
    set_apart_at: datetime
    # How many replays have failed.
    replays: int = 0
    # Since when a replay is requested; None: it is not.
    replay_at: datetime | None = None
