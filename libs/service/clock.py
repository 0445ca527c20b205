"""The clock. Nothing else in the platform may read the time of day."""

from __future__ import annotations

from datetime import UTC, datetime
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
