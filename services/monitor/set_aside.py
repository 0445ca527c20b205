"""Receivers for which nothing is begun for a while, because a delivery could not be recorded."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

SECONDS = 60.0


@dataclass
class SetAside:
    """In memory alone: the database refused what would have been written. Without it, the same
    message would be sent again at once."""

    _until: dict[Hashable, datetime] = field(default_factory=dict[Hashable, datetime])

    def add(self, key: Hashable, now: datetime) -> None:
        """Begin nothing for this receiver for a while."""
        self._until = {each: until for each, until in self._until.items() if _lasts(until, now)}
        self._until[key] = now + timedelta(seconds=SECONDS)

    def has(self, key: Hashable, now: datetime) -> bool:
        """True if nothing is to be begun for this receiver now."""
        return key in self._until and _lasts(self._until[key], now)


def _lasts(until: datetime, now: datetime) -> bool:
    """A time that lies further ahead was written before the clock was set back."""
    return now < until <= now + timedelta(seconds=SECONDS)
