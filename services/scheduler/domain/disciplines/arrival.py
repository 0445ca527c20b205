"""First come, first served: under ``fifo`` no task passes another, under ``backfill`` each that
fits the free nodes does, and under ``easy`` each that does not delay the first in line.

None of them takes nodes from a run of the same level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from services.scheduler.domain.disciplines.interface import Discipline, Filling, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey


@dataclass(frozen=True, slots=True)
class Arrival(Discipline):
    """The order of submission; a task that was preempted keeps its place."""

    name: str
    filling: Filling
    preempts: bool = False

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The moment of its submission."""
        del pool, now, finish
        return OrderKey(
            policy=self.name,
            key=task.submitted_at.timestamp(),
            counted_seconds=task.marks.counted_seconds,
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The key with which it waited."""
        del pool, now, finish
        return replace(task.marks, waiting=False)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The moment of its submission."""
        return replace(self.waiting(pool, task, now, finish), waiting=False)


FIFO = Arrival("fifo", Filling.STRICT)
BACKFILL = Arrival("backfill", Filling.GREEDY)
EASY = Arrival("easy", Filling.RESERVE)
