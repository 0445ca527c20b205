"""EASY's reservation: the first task that finds no place gets a time and nodes in the future.

A later task may start now if it is expected to end before that time, or on nodes that the
reservation does not need. The expected end of a run is its run time limit; a run without a limit is
expected to stay, so nothing is promised on its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import NodeResources, Shape
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.slots import Slot, slots_of
from services.scheduler.domain.placement.topology import Topology
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.round import Round


class End(NamedTuple):
    """When a run is expected to end, and what it then leaves; in order of these."""

    at: datetime
    task_id: str
    slots: Sequence[Slot]


def expected_end(pool: Pool, task: Task, now: datetime) -> datetime | None:
    """When a run is expected to end; None without a time limit."""
    if task.expected_seconds is None:
        return None
    left = task.expected_seconds - pool.attained(task, now)
    return now + timedelta(seconds=max(0.0, left))


def expected_end_if_begun(task: Task, now: datetime) -> datetime | None:
    """When a waiting task would end if it began now; None without a time limit."""
    if task.expected_seconds is None:
        return None
    return now + timedelta(seconds=max(0.0, task.expected_seconds - task.run_seconds))


@dataclass(slots=True)
class Reservation:
    """When the first in line is expected to start, and what it then leaves over."""

    # None: the time is unknown, and nothing is kept for the task.
    starts_at: datetime | None
    over: Capacity
    wanted: frozenset[str]

    def place(
        self, free: Capacity, shape: Shape, ends_at: datetime | None, topology: Topology | None
    ) -> tuple[Slot, ...] | None:
        """A place for a later task that does not delay the reservation, or None."""
        if self.starts_at is not None and ends_at is not None and ends_at <= self.starts_at:
            return free.pick(shape, topology=topology)
        now, over, resources = free.free, self.over.free, all_of_its_resources(shape)
        slots = free.pick(
            shape,
            lambda node_id: (
                node_id not in self.wanted
                or (now[node_id] & ~over[node_id] == 0 and self.over.offers(node_id, resources))
            ),
            topology=topology,
        )
        if slots is not None:
            self.over.take(slots)
        return slots


def all_of_its_resources(shape: Shape) -> NodeResources:
    """The most that a gang takes of one node besides GPUs."""
    if not shape.parts:
        return shape.resources
    ranks = [(each.nodes, each.resources) for each in shape.each]
    return NodeResources(
        sum(count * each.cpus for count, each in ranks),
        sum(count * each.memory_bytes for count, each in ranks),
    )


def reserve(round_: Round, pool: Pool, entry: Entry) -> Reservation:
    """Where and when the task will start if every run ends as expected."""
    runs = [round_.index.tasks[task_id] for row in pool.running.values() for _, task_id in row]
    runs += pool.leaving.values()
    runs += round_.started.get(pool.group, ())
    ends = [
        End(at, run.id, slots_of(run))
        for run in runs
        if (at := expected_end(pool, run, round_.now)) is not None
    ]
    return reserve_among(round_.free, ends, entry.shape, round_.totals.eligible(entry.shape))


def reserve_among(
    free: Capacity, ends: Iterable[End], shape: Shape, wanted: frozenset[str]
) -> Reservation:
    """The first time at which enough runs have ended; ``wanted``: nodes that would do."""
    trial = free.copy()
    ordered = sorted(ends)
    for place, end in enumerate(ordered):
        trial.give(end.slots)
        following = ordered[place + 1].at if place + 1 < len(ordered) else None
        # All ends at one time count together.
        if following != end.at and trial.fits(shape):
            trial.take(_least_free_now(free.free, shape, trial))
            return Reservation(end.at, trial, wanted)
    return Reservation(None, free.copy(), frozenset())


def _least_free_now(free: Mapping[str, int], shape: Shape, trial: Capacity) -> tuple[Slot, ...]:
    """A place for the gang that uses as few as possible of the nodes that are free already."""

    def busy(node_id: str) -> bool:
        return not free[node_id]

    if shape.parts:
        return trial.pick(shape, busy) or trial.pick(shape) or ()
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
