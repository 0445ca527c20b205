"""``roundrobin``: each run keeps its nodes for an hour, then goes behind all that wait.

The plainest time sharing, whatever the owner and the size; a baseline of the lab.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from datetime import datetime, timedelta

from services.scheduler.domain.disciplines.interface import Discipline, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, OrderKey

SLICE_SECONDS = 3600.0
# Behind the tasks that arrive at the slice end; and of runs whose slices end together, one behind
# the other.
BEHIND_SECONDS = 1e-3
BESIDE_SECONDS = 1e-6


class RoundRobin(Discipline):
    """One line: ``OrderKey.key`` is when a task joined it, ``base`` when its last slice ended."""

    __slots__ = ()
    name: str = "roundrobin"

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The place that its last slice, or its submission, gave it."""
        del pool, now, finish
        old = task.marks
        key = old.key if old.policy == self.name else task.submitted_at.timestamp()
        return OrderKey(policy=self.name, key=key, counted_seconds=old.counted_seconds)

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The same place; its slice begins."""
        del pool, finish
        until = now + timedelta(seconds=SLICE_SECONDS)
        return replace(task.marks, waiting=False, held_until=until, rekey_at=until)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Behind all that wait; if no slice round takes its nodes now, it has another slice."""
        del finish
        order_key = task.marks
        open_seconds = pool.policy.timeshare.pass_seconds + 1.0
        if order_key.policy == self.name and order_key.held_until is None:
            left = max(order_key.base + SLICE_SECONDS - now.timestamp(), open_seconds)
            until = now + timedelta(seconds=left)
            return replace(order_key, held_until=until, rekey_at=until)
        runs = pool.running.get(WEIGHTS[task.level], [])
        place = bisect_left(runs, (pool.key(order_key), task.id))
        return OrderKey(
            policy=self.name,
            waiting=False,
            key=now.timestamp() + BEHIND_SECONDS + place * BESIDE_SECONDS,
            base=now.timestamp(),
            rekey_at=now + timedelta(seconds=open_seconds),
            counted_seconds=order_key.counted_seconds,
        )


ROUNDROBIN = RoundRobin()
