"""How far the deletion of old things may go: the guard against a clock that is wrong.

Used for rows (``prune.py``), by the log agent and by the nodes' supervisors. What is old is decided
by the time of day, and a machine's time of day can jump. So the moment before which things are
deleted moves at a bounded speed, which is measured with a clock that does not jump: a year forward
costs a day of history in the first hour, and the caller can say so while there is time to mend it.

Standard library only: a supervisor has nothing else.
"""

from __future__ import annotations

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0
# The speed, wherever no setting says another one.
DAYS_PER_HOUR = 1.0


class DeletionLimit:
    """The moment before which things of one kind may be deleted. All moments are seconds.

    It lives in memory. A new process begins at the oldest thing and without a budget, so a process
    that restarts again and again deletes nothing.
    """

    def __init__(self, days_per_hour: float = DAYS_PER_HOUR) -> None:
        # 0: no bound.
        self.days_per_hour = days_per_hour
        # How far the limit is behind what was wanted.
        self.held_seconds = 0.0
        self._at: float | None = None
        self._spare = 0.0
        self._counted_s: float | None = None

    def before(self, oldest: float | None, wanted: float, monotonic_s: float) -> float:
        """The moment before which things may be deleted now, at most ``wanted``.

        ``oldest`` is the moment of the oldest thing that is there; None: there is none. Called at
        every look, also while nothing is old, so that it knows where the clock was.
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
            # A time without things costs no more than a day. What follows is guarded in full: it
            # may be young, and the only thing that is there.
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
