"""Who holds what while a forecast plays on: nodes, limits, guarantees, the runs of one level.

``course.py`` moves it along; everything is a copy, so that the index stays as it is. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from services.scheduler.domain import room
from services.scheduler.domain.clusters import UNCOVERED, Depth
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.disciplines.timeshare import features_of
from services.scheduler.domain.explanation.standing import Standing
from services.scheduler.domain.handover import ack_seconds
from services.scheduler.domain.lanes import Key
from services.scheduler.domain.marks import Marks
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.moments import protected_until
from services.scheduler.domain.order import Entry
from services.scheduler.domain.placement.place import Capacity, Slot
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.quota import held_need, minus
from services.scheduler.domain.reserve import (
    End,
    Reservation,
    expected_end,
    expected_end_if_begun,
    reserve_among,
)
from services.scheduler.domain.slices import finish_of

# With fewer ends known, the predictor says nothing that is worth saying.
ENDS_MIN = 5


@dataclass(slots=True)
class Run:
    """A run as it is at some moment to come."""

    task: Task
    weight: int
    slots: tuple[Slot, ...]
    # Seconds since the epoch from which on it may be asked to go.
    open_at: float
    # Its place in the order of its level, while it has one.
    key: Key | None = None


def expected_left(pool: Pool, task: Task, attained: float) -> float | None:
    """How long a task will still run: by its limit, else by the predictor; None: nobody knows."""
    if task.expected_seconds is not None:
        return max(0.0, task.expected_seconds - attained)
    if pool.history.ends >= ENDS_MIN:
        return pool.history.median_left(features_of(pool, task), attained)
    return None


class Board:
    """What is free, counted and held, seen from one waiting task."""

    def __init__(self, standing: Standing, now: datetime) -> None:
        self.now = now
        self.own = standing.entry
        self.pool = standing.pool
        self.round = standing.round
        self.free = self.round.free.copy()
        self.ledger = self.round.ledger.fork()
        self.clusters = self.round.clusters(self.pool).fork()
        self.runs: dict[str, Run] = {}
        # The runs of the task's own level, in order.
        self.level: list[Key] = []
        # How long those who are asked to go may take, by node.
        self._hand_over: dict[str, float] = {}
        # What was noted of owners on the way.
        self._finishes: dict[str, float] = {}
        self._depths: Mapping[str, Depth] = {}
        self._claim: Depth = UNCOVERED
        if self.pool.clusters:
            self._depths = self.round.coverage(self.pool)
            size = self.pool.size(self.own.task)
            self._claim = self.pool.coverage.claim(self.own.cluster, size, self.own.weight)

    def yields(self, task: Task, weight: int) -> bool:
        """True if the task that is asked about takes this run's nodes as soon as it may."""
        if not self.pool.clusters:
            return weight < self.own.weight
        depth = self._depths.get(task.id)
        if depth is None:
            return False
        of = self.pool.clusters.of(task)
        return room.outranks(self.own, self.own.cluster, self._claim, task, depth, of)

    def begun(self, task: Task) -> Task:
        """A run as it is once it began; one that is starting does so now."""
        return task if task.run_started_at else replace(task, run_started_at=self.now)

    def open_at(self, task: Task) -> float:
        """From when a run may be asked to go; lower ones are not held by their own level."""
        until = protected_until(task, self.pool.protected_seconds)
        held = task.marks.held_until if WEIGHTS[task.level] == self.own.weight else None
        moments = [at.timestamp() for at in (until, held) if at is not None]
        return max(moments, default=self.now.timestamp())

    def finish(self, owner: str) -> float:
        """What is kept of an owner."""
        found = self._finishes.get(owner)
        return finish_of(self.round, self.pool, owner) if found is None else found

    def noted(self, task: Task, marks: Marks) -> Task:
        """The task with new marks; what they say of its owner is kept."""
        if marks.user_finish > self.finish(task.owner):
            self._finishes[task.owner] = marks.user_finish
        return replace(task, marks=marks)

    def key_of(self, task: Task) -> float:
        """A task's key in the order of its level, now."""
        pool, key = self.pool, self.pool.key(task.marks)
        if not pool.discipline.by_user:
            return key
        return pool.discipline.order(pool, key, self.finish(task.owner), self.now)

    def reach(self, entry: Entry, ratio: float) -> float:
        """Runs with a larger key may be taken, if they are so many of the nodes it needs."""
        pool, marks = self.pool, entry.task.marks
        lead = pool.discipline.lead(self.now)
        if marks.granted:
            return entry.key + lead
        return pool.discipline.reach(pool, entry.task, marks, entry.key, ratio) + lead

    def order(self, run: Run) -> None:
        """Give a run of the task's level its place, or a new one."""
        self.unorder(run)
        run.key = self.key_of(run.task), run.task.id
        insort(self.level, run.key)

    def reorder(self) -> None:
        """All of them, where keys change with what owners had."""
        ordered = [self.runs[task_id] for _, task_id in self.level]
        for run in ordered:
            run.key = self.key_of(run.task), run.task.id
        self.level = sorted(run.key for run in ordered if run.key is not None)

    def unorder(self, run: Run) -> None:
        """Take a run out of the order."""
        if run.key is not None:
            del self.level[bisect_left(self.level, run.key)]
            run.key = None

    def leave(self, run: Run) -> None:
        """A run is over: what it held is free."""
        self.runs.pop(run.task.id, None)
        self.unorder(run)
        self.free.give(run.slots, run.task.shape.each)
        self._charge(run.task, sign=-1)

    def ask(self, run: Run) -> None:
        """A run is asked to go; whoever takes its nodes waits until it has gone."""
        seconds = ack_seconds(run.task, self.round.settings)
        for slot in run.slots:
            self._hand_over[slot.node_id] = max(seconds, self._hand_over.get(slot.node_id, 0.0))
        self.leave(run)

    def take(self, task: Task, slots: tuple[Slot, ...]) -> None:
        """A task starts on slots that are free."""
        self.free.take(slots, task.shape.each)
        for slot in slots:
            self._hand_over.pop(slot.node_id, None)
        self._charge(task, sign=1)

    def handed_over_in(self, slots: tuple[Slot, ...]) -> float:
        """Seconds until all of these slots are observed free."""
        return max((self._hand_over.get(slot.node_id, 0.0) for slot in slots), default=0.0)

    def ready(self, entry: Entry) -> bool:
        """True if nothing but others stops a waiting task."""
        until = entry.task.not_before_at
        if until is not None and until > self.now:
            return False
        need = self.round.totals.need(entry.shape)
        if self.ledger.excess(entry.task, entry.level, need) is not None:
            return False
        if entry.cluster:
            return self.clusters.full(entry.cluster, self.pool.size(entry.task)) is None
        return True

    def pick(self, entry: Entry, capacity: Capacity | None = None) -> tuple[Slot, ...] | None:
        """A place for a gang, as the pool's topology wants it."""
        return room.pick(self.round, self.pool, entry, capacity or self.free)

    def behind(self, entry: Entry, stuck: Iterable[Shape]) -> bool:
        """True if an earlier one that found no place holds it back."""
        if self.pool.discipline.filling is not Filling.STRICT:
            return False
        return any(self.round.totals.competes(entry.shape, shape) for shape in stuck)

    def needed(self, entry: Entry, trial: Capacity, taken: Sequence[Run]) -> list[Run]:
        """Of the runs taken, last first, those that are needed; the others are left alone."""
        victims: list[Run] = []
        for run in reversed(taken):
            trial.take(run.slots, run.task.shape.each)
            if not trial.fits(entry.shape) or self.pick(entry, trial) is None:
                trial.give(run.slots, run.task.shape.each)
                victims.append(run)
        return victims

    def reserve(self, entry: Entry) -> Reservation:
        """When and where it starts if all runs end as their owners said."""
        ends = [
            End(at, task_id, run.slots, run.task.shape.each)
            for task_id, run in self.runs.items()
            if (at := expected_end(self.pool, run.task, self.now)) is not None
        ]
        wanted = self.round.totals.eligible(entry.shape)
        return reserve_among(self.free, ends, entry.shape, wanted)

    def beside(self, reserved: Reservation, entry: Entry) -> tuple[Slot, ...] | None:
        """A place for a later task that does not delay the reservation, or None."""
        ends_at = expected_end_if_begun(entry.task, self.now)
        topology = self.round.topology(self.pool)
        return reserved.place(self.free, entry.shape, ends_at, topology)

    def _charge(self, task: Task, sign: int) -> None:
        need = held_need(task)
        self.ledger.charge(task, task.level, need if sign > 0 else minus(need))
        self.clusters.charge(self.clusters.of(task), sign * self.pool.size(task))
