"""How often mail is sent: a burst, and then one at a time. Pure.

The state is one time, kept in a row: a new leader and a restart grant no second burst.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class MailRate:
    """So many mails at once, and then one in so many seconds."""

    burst: int
    seconds: float

    def free_at(self, until: datetime) -> datetime:
        """When the next mail may go. ``until``: the time up to which the rate is used."""
        return until - timedelta(seconds=(self.burst - 1) * self.seconds)

    def used(self, until: datetime, now: datetime) -> datetime:
        """The time up to which the rate is used after a mail that goes now."""
        return max(until, now) + timedelta(seconds=self.seconds)
