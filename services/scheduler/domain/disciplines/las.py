"""``las``: least attained service first, in two queues; a baseline of the lab.

Tasks that had less than ten node-hours come before all others; inside a queue first come, first
served, and an earlier task takes the nodes of runs that come later. The key of a run is recomputed
when it crosses the boundary.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from services.scheduler.domain.disciplines.interface import Discipline, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey

# What the first queue serves: ten node-hours.
SERVED_NODE_SECONDS = 36_000.0
# Puts the second queue behind everything in the first; small enough that a key keeps milliseconds.
SECOND_QUEUE = 1e11
# Attained times are differences of clocks.
ALMOST = 1e-3


class LeastAttained(Discipline):
    """Two queues by what a task has had."""

    __slots__ = ()
    name: str = "las"

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its submission, in the queue of what it has had."""
        del now, finish
        return self._made(pool, task, task.run_seconds, waiting=True)

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The key with which it waited, until it has had its ten node-hours."""
        del finish
        order_key = self._made(pool, task, task.run_seconds, waiting=False)
        return replace(order_key, rekey_at=_crosses_at(pool, task, task.run_seconds, now))

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The second queue; the first for a little longer if its start took long."""
        del finish
        attained = pool.attained(task, now)
        order_key = self._made(pool, task, attained, waiting=False)
        return replace(order_key, rekey_at=_crosses_at(pool, task, attained, now))

    def _made(self, pool: PoolView, task: Task, attained: float, *, waiting: bool) -> OrderKey:
        served = _missing(pool, task, attained) <= ALMOST
        return OrderKey(
            policy=self.name,
            waiting=waiting,
            key=task.submitted_at.timestamp() + (SECOND_QUEUE if served else 0.0),
            counted_seconds=task.marks.counted_seconds,
        )


def _missing(pool: PoolView, task: Task, attained: float) -> float:
    """Seconds of running until the task is in the second queue."""
    return SERVED_NODE_SECONDS / max(pool.size(task), 1e-9) - attained


def _crosses_at(pool: PoolView, task: Task, attained: float, now: datetime) -> datetime | None:
    missing = _missing(pool, task, attained)
    return now + timedelta(seconds=missing) if missing > ALMOST else None


LAS = LeastAttained()
