"""``srpt``: shortest remaining time first, the lab's oracle; it needs to know how long tasks run.

A waiting task is ordered by its remaining running time, a run by its expected end. The two are
compared as if the waiting task started now.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from services.scheduler.domain.disciplines.interface import Discipline, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey

# Where the running time is not known: behind all whose time is known, first come first served.
UNKNOWN_SECONDS = 1e10
# Of two that end at the same moment, the running one goes on.
SLACK_SECONDS = 1e-3


class ShortestRemaining(Discipline):
    """The order of the remaining running times."""

    __slots__ = ()
    name: str = "srpt"

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its remaining running time."""
        del pool, now, finish
        return OrderKey(
            policy=self.name,
            key=remaining(task, task.run_seconds),
            counted_seconds=task.marks.counted_seconds,
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its expected end."""
        del pool, finish
        key = now.timestamp() + remaining(task, task.run_seconds)
        return replace(task.marks, policy=self.name, waiting=False, key=key, scaled=0.0)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its expected end."""
        del finish
        key = now.timestamp() + remaining(task, pool.attained(task, now))
        return OrderKey(
            policy=self.name,
            waiting=False,
            key=key,
            counted_seconds=task.marks.counted_seconds,
        )

    def lead(self, now: datetime) -> float:
        """The expected end of a waiting task is its remaining time after now."""
        return now.timestamp() + SLACK_SECONDS


def remaining(task: Task, attained: float) -> float:
    """Seconds the task still has to run."""
    if task.expected_seconds is None:
        return UNKNOWN_SECONDS + task.submitted_at.timestamp()
    return max(0.0, task.expected_seconds - attained)


SRPT = ShortestRemaining()
