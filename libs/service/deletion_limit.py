"""Limits how fast old data is deleted, as a guard against a wrong clock.

``prune.py``, the log agent and the nodes' supervisors use it. Age depends on the time of day, which
can jump. So the cutoff before which data is deleted moves at a bounded speed, measured with a clock
that does not jump: a jump of a year costs a day of history in the first hour, and the caller can
warn while there is time to correct the clock.

Standard library only: a supervisor has nothing else.
"""

from __future__ import annotations

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0
# The default speed.
DAYS_PER_HOUR = 1.0


class DeletionLimit:
    """Computes the cutoff before which data of one kind may be deleted. All times are seconds.

    The state is in memory. A new process starts at the oldest entry without a budget, so a process
    that restarts again and again deletes nothing.
    """

    def __init__(self, days_per_hour: float = DAYS_PER_HOUR) -> None:
        # 0: no bound.
        self.days_per_hour = days_per_hour
        # How far the cutoff is behind what was wanted.
        self.held_seconds = 0.0
        self._at: float | None = None
        self._spare = 0.0
        self._counted_s: float | None = None

    def before(self, oldest: float | None, wanted: float, monotonic_s: float) -> float:
        """Return the cutoff before which data may be deleted now, at most ``wanted``.

        ``oldest`` is the time of the oldest entry; None: there is none. Call it at every check,
        also while nothing is old, so that it knows where the clock was.
        """
        if self.days_per_hour == 0:
            return wanted
        self._earn(monotonic_s)
        if oldest is None or oldest >= wanted:
            self._at, self.held_seconds = wanted, 0.0
            return wanted
        # The limit goes back with the clock.
        at = oldest if self._at is None else min(self._at, wanted)
        if at < oldest - DAY_SECONDS:
            # A time without entries costs no more than a day. What follows is guarded in full: it
            # may be young, and the only entry that is left.
            at, self._spare = oldest - DAY_SECONDS, 0.0
        step = max(0.0, min(wanted - at, self._spare))
        self._spare -= step
        self._at = at + step
        self.held_seconds = max(0.0, wanted - self._at)
        return self._at

    def _earn(self, monotonic_s: float) -> None:
        if self._counted_s is not None:
            speed = self.days_per_hour * DAY_SECONDS / HOUR_SECONDS
            earned = (monotonic_s - self._counted_s) * speed
            # What an hour earns is kept, no more: a year without old things earns no year.
            most = DAY_SECONDS * max(1.0, self.days_per_hour)
            self._spare = min(self._spare + earned, most)
        self._counted_s = monotonic_s
