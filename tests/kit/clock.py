"""The time of all tests: it begins at ``START`` and advances only when a test moves a clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The time ``seconds`` after the beginning of all tests."""
    return START + timedelta(seconds=seconds)


@dataclass
class FakeClock:
    """A clock that tests move; each reading moves it by ``tick_seconds``."""

    current_time: datetime = START
    tick_seconds: float = 0.0

    def now(self) -> datetime:
        self.advance(self.tick_seconds)
        return self.current_time

    def advance(self, seconds: float) -> None:
        self.current_time += timedelta(seconds=seconds)

    def move_to(self, seconds: float) -> None:
        """Set the clock to ``seconds`` after ``START``."""
        self.current_time = at(seconds)
