"""The rows of dead letters: events that a service has set apart. Every schema has these tables.

``libs.service.dead_letters`` writes and replays them. The body may be large, so it has a row of its
own, which only a replay reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Direction(Enum):
    """The direction in which the event travelled."""

    # The service could not handle it.
    RECEIVED = "received"
    # The bus does not accept it.
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One event as on the bus, without its body, and the reason why it was set apart."""

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
    # When a replay was requested; None if none is requested.
    replay_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterBody:
    """The body of the letter with this id."""

    id: str
    body: bytes
