"""EASY's reservation: the first task that finds no place gets a time and nodes in the future.

Who comes after it may start now if it is expected to end before that time, or on nodes that the
reservation does not need. Expectations are the owners' run time limits; a run without one is
expected to stay, so nothing is promised on its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.scheduler.domain.model import Shape, Task
from services.scheduler.domain.order import Entry
from services.scheduler.domain.place import Capacity, Slot, slots_of
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round


def expected_end(pool: Pool, task: Task, now: datetime) -> datetime | None:
    """When a run is expected to end; None if nobody said so."""
    if task.expected_seconds is None:
        return None
    left = task.expected_seconds - pool.attained(task, now)
    return now + timedelta(seconds=max(0.0, left))


@dataclass(slots=True)
class Reservation:
    """When the first in line is expected to start, and what it then leaves over."""

    # None: nobody knows; then nothing may start before it on nodes that it could use.
    starts_at: datetime | None
    over: Capacity
    wanted: frozenset[str]

    def place(self, round_: Round, pool: Pool, entry: Entry) -> tuple[Slot, ...] | None:
        """A place for a later task that does not delay the reservation, or None."""
        topology = round_.topology(pool)
        expected = entry.task.expected_seconds
        if self.starts_at is not None and expected is not None:
            left = max(0.0, expected - entry.task.run_seconds)
            if round_.after(left) <= self.starts_at:
                return round_.free.pick(entry.shape, topology=topology)
        free, over = round_.free.free, self.over.free
        slots = round_.free.pick(
            entry.shape,
            lambda node_id: node_id not in self.wanted or free[node_id] & ~over[node_id] == 0,
            topology=topology,
        )
        if slots is not None:
            self.over.take(slots)
        return slots


def reserve(round_: Round, pool: Pool, entry: Entry) -> Reservation:
    """Where and when the task will start if every run ends as expected."""
    wanted = round_.totals.eligible(entry.shape)
    trial = round_.free.copy()
    runs = [round_.index.tasks[task_id] for row in pool.running.values() for _, task_id in row]
    runs += pool.leaving.values()
    runs += round_.started.get(pool.group, ())
    ends = [(end, run.id, run) for run in runs if (end := expected_end(pool, run, round_.now))]
    ends.sort(key=lambda each: each[:2])
    for place, (end, _, run) in enumerate(ends):
        trial.give(slots_of(run))
        following = ends[place + 1][0] if place + 1 < len(ends) else None
        # All ends of one moment count together.
        if following != end and trial.fits(entry.shape):
            trial.take(_least_free_now(round_, entry.shape, trial))
            return Reservation(end, trial, wanted)
    return Reservation(None, round_.free.copy(), frozenset())


def _least_free_now(round_: Round, shape: Shape, trial: Capacity) -> tuple[Slot, ...]:
    """A place for the gang that uses as few as possible of the nodes that are free already."""
    free = round_.free.free

    def busy(node_id: str) -> bool:
        return not free[node_id]

    low, high = 0, shape.nodes
    while low < high:
        middle = (low + high + 1) // 2
        fits = trial.pick(shape._replace(nodes=middle), busy) is not None
        low, high = (middle, high) if fits else (low, middle - 1)
    later = trial.pick(shape._replace(nodes=low), busy) if low else ()
    assert later is not None, "so many were found a line above"
    if low == shape.nodes:
        return later
    taken = {slot.node_id for slot in later}
    rest = trial.pick(shape._replace(nodes=shape.nodes - low), lambda node: node not in taken)
    return (*later, *(rest or ()))
