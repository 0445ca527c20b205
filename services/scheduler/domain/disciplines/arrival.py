"""First come, first served: ``fifo`` lets nobody pass, ``backfill`` whoever fits what is free, and
``easy`` whoever does not delay the first in line.

None of them takes nodes from a run of the same level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from services.scheduler.domain.disciplines.base import Filling, Ordered, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey


@dataclass(frozen=True, slots=True)
class Arrival(Ordered):
    """The order of submission; a task that was preempted keeps its place."""

    name: str
    filling: Filling
    preempts: bool = False
    pays: bool = False

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its submission."""
        del pool, now, finish
        return OrderKey(
            policy=self.name,
            key=task.submitted_at.timestamp(),
            counted_seconds=task.marks.counted_seconds,
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """As it waited."""
        del pool, now, finish
        return replace(task.marks, waiting=False)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """There are no slices; only runs that began under another discipline come here."""
        return replace(self.waiting(pool, task, now, finish), waiting=False)


FIFO = Arrival("fifo", Filling.STRICT)
BACKFILL = Arrival("backfill", Filling.GREEDY)
EASY = Arrival("easy", Filling.RESERVE)
