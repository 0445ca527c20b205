"""``srpt``: shortest remaining time first, the lab's oracle; it needs to know how long tasks run.

A waiting task is ordered by what it still has to run, a run by when it is expected to end; at a
moment the two are compared by counting the waiting one from that moment on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from services.scheduler.domain.disciplines.base import Filling, Ordered, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey

# In place of what nobody knows: behind everything that is known, first come first served.
UNKNOWN_SECONDS = 1e10
# Of two that end at the same moment, the one that runs is left alone.
SLACK_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class ShortestRemaining(Ordered):
    """The order of what is left to run."""

    name: str = "srpt"
    filling: Filling = Filling.GREEDY
    preempts: bool = True
    pays: bool = False

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """What it has left."""
        del pool, now, finish
        return OrderKey(
            policy=self.name,
            key=remaining(task, task.run_seconds),
            counted_seconds=task.marks.counted_seconds,
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """When it is expected to end."""
        del pool, finish
        key = now.timestamp() + remaining(task, task.run_seconds)
        return replace(task.marks, policy=self.name, waiting=False, key=key, scaled=0.0)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """When it is expected to end; only runs that began under another discipline come here."""
        del finish
        key = now.timestamp() + remaining(task, pool.attained(task, now))
        return OrderKey(
            policy=self.name,
            waiting=False,
            key=key,
            counted_seconds=task.marks.counted_seconds,
        )

    def lead(self, now: datetime) -> float:
        """A task that waits would end so much later than it has to run."""
        return now.timestamp() + SLACK_SECONDS


def remaining(task: Task, attained: float) -> float:
    """Seconds the task still has to run."""
    if task.expected_seconds is None:
        return UNKNOWN_SECONDS + task.submitted_at.timestamp()
    return max(0.0, task.expected_seconds - attained)


SRPT = ShortestRemaining()
