"""Receivers for which nothing is begun for a while, because a delivery could not be recorded."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

SECONDS = 60.0
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Cooldown(Generic[Key]):
    """In memory alone: the database refused what would have been written. Without it, the same
    message would be sent again at once."""

    _until: dict[Key, datetime] = field(default_factory=dict[Key, datetime])

    def add(self, key: Key, now: datetime) -> None:
        """Begin nothing for this receiver for a while."""
        self._until = {each: until for each, until in self._until.items() if _lasts(until, now)}
        self._until[key] = now + timedelta(seconds=SECONDS)

    def all(self, now: datetime) -> set[Key]:
        """The receivers for which nothing is to be begun now."""
        return {key for key, until in self._until.items() if _lasts(until, now)}


def _lasts(until: datetime, now: datetime) -> bool:
    """A time that lies further ahead was written before the clock was set back."""
    return now < until <= now + timedelta(seconds=SECONDS)
