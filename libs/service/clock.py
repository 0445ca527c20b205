"""The clock. Nothing else in the platform may read the time of day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The clock of a service."""

    def now(self) -> datetime:
        """The current time in UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.now(UTC)


def time_of(at_s: float) -> datetime:
    """Seconds since 1970 as a time."""
    return datetime.fromtimestamp(at_s, UTC)


class ForwardClock:
    """A clock that is never set back, for times that are kept in memory: when the machine's clock
    is corrected, waiting periods go on instead of lasting as long as the correction. Its times mean
    nothing outside the object that has it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: datetime | None = None
        self._set_back = timedelta()

    def now(self) -> datetime:
        """The clock's time, and all by which it was set back."""
        now = self._clock.now()
        if self._last is not None and now < self._last:
            self._set_back += self._last - now
        self._last = now
        return now + self._set_back
