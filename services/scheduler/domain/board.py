"""Who holds what while a forecast plays on: nodes, limits, guarantees, the runs of one level.

``course.py`` moves it along; everything is a copy, so that the index stays as it is. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from services.scheduler.domain import room
from services.scheduler.domain.clusters import UNCOVERED, Depth
from services.scheduler.domain.disciplines.timeshare import features_of
from services.scheduler.domain.handover import ack_seconds
from services.scheduler.domain.lanes import Key
from services.scheduler.domain.model import WEIGHTS, Task
from services.scheduler.domain.moments import protected_until
from services.scheduler.domain.order import Entry
from services.scheduler.domain.place import Capacity, Slot
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.quota import held_need, minus
from services.scheduler.domain.standing import Standing, run_key

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

    def __init__(self, standing: Standing) -> None:
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

    def open_at(self, task: Task, now: float) -> float:
        """From when a run may be asked to go; lower ones are not held by their own level."""
        until = protected_until(task, self.pool.protected_seconds)
        held = task.marks.held_until if WEIGHTS[task.level] == self.own.weight else None
        moments = [at.timestamp() for at in (until, held) if at is not None]
        return max(moments, default=now)

    def order(self, run: Run) -> None:
        """Give a run of the task's level its place, or a new one."""
        self.unorder(run)
        run.key = run_key(self.round, self.pool, run.task), run.task.id
        insort(self.level, run.key)

    def unorder(self, run: Run) -> None:
        """Take a run out of the order."""
        if run.key is not None:
            del self.level[bisect_left(self.level, run.key)]
            run.key = None

    def leave(self, run: Run) -> None:
        """A run is over: what it held is free."""
        self.runs.pop(run.task.id, None)
        self.unorder(run)
        self.free.give(run.slots)
        self._charge(run.task, sign=-1)

    def ask(self, run: Run) -> None:
        """A run is asked to go; whoever takes its nodes waits until it has gone."""
        seconds = ack_seconds(run.task, self.round.settings)
        for slot in run.slots:
            self._hand_over[slot.node_id] = max(seconds, self._hand_over.get(slot.node_id, 0.0))
        self.leave(run)

    def take(self, task: Task, slots: tuple[Slot, ...]) -> None:
        """A task starts on slots that are free."""
        self.free.take(slots)
        for slot in slots:
            self._hand_over.pop(slot.node_id, None)
        self._charge(task, sign=1)

    def handed_over_in(self, slots: tuple[Slot, ...]) -> float:
        """Seconds until all of these slots are observed free."""
        return max((self._hand_over.get(slot.node_id, 0.0) for slot in slots), default=0.0)

    def ready(self, entry: Entry, now: datetime) -> bool:
        """True if nothing but others stops a waiting task."""
        until = entry.task.not_before_at
        if until is not None and until > now:
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

    def _charge(self, task: Task, sign: int) -> None:
        need = held_need(task)
        self.ledger.charge(task, task.level, need if sign > 0 else minus(need))
        self.clusters.charge(self.clusters.of(task), sign * self.pool.size(task))
