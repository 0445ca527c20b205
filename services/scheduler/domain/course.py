"""The course of things in one pool from now on, as ``forecast.py`` plays it. Pure and bounded.

A small model of ``decide``: capacity, limits, the order of one level and its turns are the real
ones; what is new, fails or belongs to other pools is left out. Lower runs count as gone, because
whoever is looked at here takes their nodes at once.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from services.scheduler.domain import room
from services.scheduler.domain.accounts import RULE, counted
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.disciplines.timeshare import features_of
from services.scheduler.domain.handover import ack_seconds
from services.scheduler.domain.lifecycle import PREEMPTING, RUNNING
from services.scheduler.domain.masks import joined
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.moments import protected_until, sinks_at
from services.scheduler.domain.order import Entry
from services.scheduler.domain.passes import turn_cost
from services.scheduler.domain.place import Capacity, Slot, placements_of, slots_of
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.quota import held_need, minus
from services.scheduler.domain.slices import finish_of
from services.scheduler.domain.standing import Standing, reach, run_key
from services.scheduler.domain.timeshare.rule import is_big, preemption_budget, spent

# Looks at tasks and runs, all in all: what a leader can spare for one question.
WORK_MAX = 100_000
# A run that is tried as a victim counts for so many looks.
GIVEN_WORK = 10
# With fewer ends known, the predictor says nothing that is worth saying.
ENDS_MIN = 5


class Stopped(Enum):
    """Why no moment was found."""

    TOO_LONG = "too long"
    NOTHING_LEFT = "nothing left"


class _Kind(Enum):
    ENDS = 0
    # It can be asked to go from here on; its level sinks; its slice ends.
    OPENS = 1
    SINKS = 2
    REKEYS = 3
    # Time alone: a retry, or the budget is enough.
    WAKES = 4


@dataclass(slots=True)
class _Run:
    task: Task
    weight: int
    slots: tuple[Slot, ...]
    # Moments of its marks count only while they are these.
    open_at: float


def expected_left(pool: Pool, task: Task, attained: float) -> float | None:
    """How long a task will still run: by its limit, else by the predictor; None: nobody knows."""
    if task.expected_seconds is not None:
        return max(0.0, task.expected_seconds - attained)
    if pool.history.ends >= ENDS_MIN:
        return pool.history.median_left(features_of(pool, task), attained)
    return None


class Course:
    """What happens from now on, until the task starts."""

    def __init__(self, standing: Standing, now: datetime, *, horizon: datetime) -> None:
        self.own = standing.entry
        self.pool = standing.pool
        self.round = standing.round
        self.seconds = now.timestamp()
        self.steps = 0
        # Runs of which nobody knows when they end; and whether the predictor was asked.
        self.endless: set[str] = set()
        self.by_history = False
        self._work = 0
        self._horizon = horizon.timestamp()
        self._free = self.round.free.copy()
        self._ledger = self.round.ledger.fork()
        self._clusters = self.round.clusters(self.pool).fork()
        self._events: list[tuple[float, int, _Kind, str]] = []
        self._runs: dict[str, _Run] = {}
        # Runs of the task's own level by key; slots that lower runs still hold, and how long those
        # may take to go.
        self._level: list[tuple[float, str]] = []
        self._hand_over: dict[str, float] = {}
        self._waiting: list[Entry] = sorted([*standing.ahead(), self.own], key=_place)
        self._budget = preemption_budget(
            RULE,
            self.pool.policy.timeshare,
            self.pool.units,
            self.pool.policy.timeshare.restart_seconds,
        )
        book = self.round.book(self.pool)
        self._account = counted(self._budget, book.tokens, book.tokens_at, self.round)
        self._enter_all()

    def run(self) -> float | Stopped:
        """Play until the task has its place; seconds since the epoch."""
        while True:
            self.steps += 1
            slots = self._fill()
            if slots is not None:
                asked = [self._hand_over.get(slot.node_id, 0.0) for slot in slots]
                return self.seconds + max(asked, default=0.0)
            if not self._events:
                return Stopped.NOTHING_LEFT
            at = self._events[0][0]
            if at > self._horizon or self._work > WORK_MAX:
                self.seconds = min(at, self._horizon)
                return Stopped.TOO_LONG
            self.seconds = max(self.seconds, at)
            while self._events and self._events[0][0] <= self.seconds:
                _, _, kind, task_id = heapq.heappop(self._events)
                self._happen(kind, task_id)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def _at(self, at: float, kind: _Kind, task_id: str = "") -> None:
        self._work += 1
        heapq.heappush(self._events, (at, self._work, kind, task_id))

    # What is there at the beginning.

    def _enter_all(self) -> None:
        tasks, pool = self.round.index.tasks, self.pool
        for row in pool.running.values():
            for _, task_id in row:
                self._enter(tasks[task_id], slots_of(tasks[task_id]))
        kept = self._kept()
        for task in pool.leaving.values():
            at = self.seconds
            if task.state is PREEMPTING and task.ack_deadline_at is not None:
                at = task.ack_deadline_at.timestamp()
            slots = [
                Slot(node_id, mask & ~kept.get(node_id, 0))
                for node_id, mask in slots_of(task)
                if not mask or mask & ~kept.get(node_id, 0)
            ]
            self._runs[task.id] = _Run(task, WEIGHTS[task.level], tuple(slots), at)
            self._at(at, _Kind.ENDS, task.id)
        for entry in self._waiting:
            until = entry.task.not_before_at
            if until is not None and until.timestamp() > self.seconds:
                self._at(until.timestamp(), _Kind.WAKES)

    def _kept(self) -> dict[str, int]:
        """Bits that are promised; a promise is as good as a run, from when it can be redeemed."""
        kept: dict[str, int] = {}
        holders = self.round.index.holders
        for task in self.pool.promised.values():
            for node_id, mask in slots_of(task):
                if WEIGHTS[task.level] >= self.own.weight:
                    kept[node_id] = kept.get(node_id, 0) | mask
                    continue
                # Promises to lower tasks are taken first.
                held = joined(holders.get(node_id, {}).values())
                self._free.give((Slot(node_id, mask & ~held),) if mask & ~held else ())
            if WEIGHTS[task.level] >= self.own.weight:
                begun = replace(task, placements=task.promised, promised=())
                self._enter(begun, slots_of(task))
        return kept

    def _enter(self, task: Task, slots: tuple[Slot, ...]) -> None:
        """A run with what will come of it."""
        pool, now = self.pool, self._now()
        open_at = self._open_at(task)
        run = self._runs[task.id] = _Run(task, WEIGHTS[task.level], slots, open_at)
        left = expected_left(pool, task, pool.attained(task, now))
        self.by_history = self.by_history or (left is not None and task.expected_seconds is None)
        if left is None:
            self.endless.add(task.id)
        else:
            self._at(self.seconds + left, _Kind.ENDS, task.id)
        if run.weight < self.own.weight:
            self._lower(run)
            return
        sinks = sinks_at(task, pool.policy)
        if sinks is not None:
            self._at(max(self.seconds, sinks.timestamp()), _Kind.SINKS, task.id)
        if run.weight == self.own.weight and pool.discipline.preempts:
            self._order(run)

    def _open_at(self, task: Task) -> float:
        """From when a run may be asked to go; lower ones are not held by their own level."""
        until = protected_until(task, self.pool.protected_seconds)
        held = task.marks.held_until if WEIGHTS[task.level] == self.own.weight else None
        moments = [at.timestamp() for at in (until, held) if at is not None]
        return max(moments, default=self.seconds)

    def _order(self, run: _Run) -> None:
        marks = run.task.marks
        insort(self._level, (run_key(self.round, self.pool, run.task), run.task.id))
        if run.open_at > self.seconds:
            self._at(run.open_at, _Kind.OPENS, run.task.id)
        if marks.rekey_at is not None:
            self._at(max(self.seconds, marks.rekey_at.timestamp()), _Kind.REKEYS, run.task.id)

    def _lower(self, run: _Run) -> None:
        """A run of a lower level gives way as soon as it may be asked."""
        if run.open_at > self.seconds:
            self._at(run.open_at, _Kind.OPENS, run.task.id)
            return
        seconds = ack_seconds(run.task, self.round.settings)
        for slot in run.slots:
            self._hand_over[slot.node_id] = max(seconds, self._hand_over.get(slot.node_id, 0.0))
        self._leave(run)

    # What happens.

    def _happen(self, kind: _Kind, task_id: str) -> None:
        run = self._runs.get(task_id)
        if run is None:
            return
        if kind is _Kind.ENDS:
            self._leave(run)
        elif kind is _Kind.OPENS and run.weight < self.own.weight:
            self._lower(run)
        elif kind is _Kind.SINKS:
            self._sink(run)
        elif kind is _Kind.REKEYS:
            self._rekey(run)

    def _leave(self, run: _Run) -> None:
        task = run.task
        self._runs.pop(task.id, None)
        self.endless.discard(task.id)
        key = (run_key(self.round, self.pool, task), task.id)
        if key in self._level:
            self._level.remove(key)
        self._free.give(run.slots)
        self._ledger.charge(task, task.level, minus(held_need(task)))
        self._clusters.charge(self._clusters.of(task), -self.pool.size(task))

    def _sink(self, run: _Run) -> None:
        for demotion in self.pool.policy.demotions:
            if demotion.level is run.task.level:
                run.task = replace(run.task, level=demotion.to)
                run.weight = WEIGHTS[demotion.to]
                break
        if run.weight < self.own.weight:
            self._lower(run)
        elif run.weight == self.own.weight and self.pool.discipline.preempts:
            self._order(run)

    def _rekey(self, run: _Run) -> None:
        key = (run_key(self.round, self.pool, run.task), run.task.id)
        if key not in self._level:
            return
        self._level.remove(key)
        finish = finish_of(self.round, self.pool, run.task.owner)
        marks = self.pool.discipline.slice_over(self.pool, run.task, self._now(), finish)
        run.task = replace(run.task, marks=marks)
        self._order(run)

    # Who starts.

    def _fill(self) -> tuple[Slot, ...] | None:
        """Place whoever can be; the task's own slots, if it is among them."""
        # Shapes that found no place, and those for which too little comes after them in the order.
        stuck: set[Shape] = set()
        turnless: set[Shape] = set()
        turns = self.pool.discipline.preempts
        for entry in list(self._waiting):
            self._work += 1
            if not self._ready(entry) or self._behind(entry, stuck):
                continue
            slots = None if entry.shape in stuck else self._pick(entry, self._free)
            if slots is None:
                stuck.add(entry.shape)
                if turns and entry.weight == self.own.weight and entry.shape not in turnless:
                    slots, turns = self._turn(entry)
                    turnless.update(() if slots else (entry.shape,))
            if slots is not None:
                if entry.id == self.own.id:
                    return slots
                self._start(entry, slots)
            elif not turns and self.own.shape in stuck:
                return None
        return None

    def _ready(self, entry: Entry) -> bool:
        """True if nothing but others stops it."""
        until = entry.task.not_before_at
        if until is not None and until.timestamp() > self.seconds:
            return False
        need = self.round.totals.need(entry.shape)
        if self._ledger.excess(entry.task, entry.level, need) is not None:
            return False
        if entry.cluster:
            return self._clusters.full(entry.cluster, self.pool.size(entry.task)) is None
        return True

    def _behind(self, entry: Entry, stuck: set[Shape]) -> bool:
        """True if an earlier one that found no place holds it back."""
        if self.pool.discipline.filling is Filling.GREEDY:
            return False
        return any(self.round.totals.competes(entry.shape, shape) for shape in stuck)

    def _start(self, entry: Entry, slots: tuple[Slot, ...]) -> None:
        pool, now = self.pool, self._now()
        self._waiting.remove(entry)
        self._free.take(slots)
        for slot in slots:
            self._hand_over.pop(slot.node_id, None)
        waits = replace(entry.task, marks=self.round.marks_of(entry.task))
        finish = finish_of(self.round, pool, waits.owner)
        task = replace(
            waits,
            state=RUNNING,
            level=entry.level,
            placements=placements_of(slots, entry.task.spec, self.round.index.nodes),
            run_started_at=now,
            marks=pool.discipline.starting(pool, waits, now, finish),
        )
        self._ledger.charge(task, task.level, held_need(task))
        self._clusters.charge(entry.cluster, pool.size(task))
        self._enter(task, slots)

    def _turn(self, entry: Entry) -> tuple[tuple[Slot, ...] | None, bool]:
        """Its turn, if it can be paid; and whether those behind it may have theirs."""
        pool, size = self.pool, self.pool.size(entry.task)
        ratio = max(0.0, size - self._free.free_units(pool.group)) / size
        after = reach(self.round, pool, entry, ratio)
        trial = self._free.copy()
        taken: list[Task] = []
        for key, task_id in reversed(self._level):
            self._work += 1
            run = self._runs[task_id]
            if key <= after:
                return None, True
            if run.open_at > self.seconds or pool.discipline.spares(entry.task, run.task):
                continue
            self._work += GIVEN_WORK
            trial.give(run.slots)
            taken.append(run.task)
            if trial.fits(entry.shape) and self._pick(entry, trial) is not None:
                break
        else:
            return None, True
        victims = room.spare(self.round, self.pool, entry, trial, taken)
        gone = sum(map(pool.size, victims)) / size
        least = min((run_key(self.round, pool, task) for task in victims), default=after)
        if least <= reach(self.round, pool, entry, gone):
            return None, True
        if not self._pay(entry, sum(turn_cost(self.pool, each, self.seconds) for each in victims)):
            return None, False
        for task in victims:
            self._go(task, entry)
        return self._pick(entry, self._free), True

    def _pick(self, entry: Entry, capacity: Capacity) -> tuple[Slot, ...] | None:
        return room.pick(self.round, self.pool, entry, capacity)

    def _pay(self, entry: Entry, cost: float) -> bool:
        pool, budget = self.pool, self._budget
        if not pool.discipline.pays:
            return True
        self._account = budget.accrued(self._account, self.seconds)
        big = is_big(RULE, pool.size(entry.task) / max(pool.units, 1e-9))
        entitled = big or self.round.marks_of(entry.task).granted
        if not budget.covers(self._account, cost, entitled=entitled):
            at = budget.covered_at(self._account, cost, entitled=entitled)
            if at is not None:
                self._at(max(at, self.seconds + 1.0), _Kind.WAKES)
            return False
        self._account = spent(self._account, cost)
        return True

    def _go(self, task: Task, entry: Entry) -> None:
        """A run goes for another; it waits again, before the task or out of its way."""
        run = self._runs[task.id]
        seconds = ack_seconds(task, self.round.settings)
        for slot in run.slots:
            self._hand_over[slot.node_id] = max(seconds, self._hand_over.get(slot.node_id, 0.0))
        key = run_key(self.round, self.pool, task)
        self._leave(run)
        if (key, task.id) < (self.own.key, self.own.id) and task.id != entry.id:
            attained = self.pool.attained(task, self._now())
            back = replace(task, placements=(), run_started_at=None, run_seconds=attained)
            insort(
                self._waiting,
                entry._replace(key=key, id=task.id, task=back, shape=task.shape),
                key=_place,
            )


def _place(entry: Entry) -> tuple[int, float, str]:
    return entry[:3]
