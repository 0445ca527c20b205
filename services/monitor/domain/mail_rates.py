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

    @property
    def longest(self) -> timedelta:
        """How far ahead the rate can be used."""
        return timedelta(seconds=self.burst * self.seconds)

    def counted(self, until: datetime, now: datetime) -> datetime:
        """The time up to which the rate is used. One that lies too far ahead was written before
        the clock was set back: the burst counts as used, and the next mail may go."""
        if until <= now + self.longest:
            return until
        return now + timedelta(seconds=(self.burst - 1) * self.seconds)

    def free_at(self, until: datetime) -> datetime:
        """When the next mail may go. ``until``: the time up to which the rate is used."""
        return until - timedelta(seconds=(self.burst - 1) * self.seconds)

    def given_back(self, until: datetime) -> datetime:
        """The time up to which the rate is used without the last mail, which was not sent."""
        return until - timedelta(seconds=self.seconds)

    def used(self, until: datetime, now: datetime) -> datetime:
        """The time up to which the rate is used after a mail that goes now."""
        return max(until, now) + timedelta(seconds=self.seconds)
