"""The course of things in one pool from now on, as ``forecast.py`` plays it. Pure and bounded.

A small model of ``decide``: capacity, limits, the order of one level and its turns are the real
ones; what is new, fails or belongs to other pools is left out. Runs that yield to the task (lower
ones, those that borrow what it is guaranteed) count as gone as soon as they may be asked.
``board.py`` keeps who holds what.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum

from services.scheduler.domain.accounts import counted, entitled, turn_budget
from services.scheduler.domain.board import Board, Run, expected_left
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.lifecycle import PREEMPTING, RUNNING
from services.scheduler.domain.masks import joined
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.moments import sinks_at
from services.scheduler.domain.order import Entry
from services.scheduler.domain.passes import turn_cost
from services.scheduler.domain.place import Capacity, Slot, placements_of, slots_of
from services.scheduler.domain.slices import finish_of
from services.scheduler.domain.standing import Standing, reach
from services.scheduler.domain.timeshare.rule import grant_budget, grant_cost, spent

# Looks at tasks and runs, all in all: what a leader can spare for one question.
WORK_MAX = 40_000
# A run that is tried as a victim counts for so many looks, a place that is searched too.
GIVEN_WORK = 10


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
    # Time alone: a retry, or an account that is full enough.
    WAKES = 4


class Course:
    """What happens from now on, until the task starts."""

    def __init__(self, standing: Standing, now: datetime, *, horizon: datetime) -> None:
        self.own = standing.entry
        self.pool = standing.pool
        self.round = standing.round
        self.seconds = now.timestamp()
        self.steps = 0
        self.looks = 0
        # Runs of which nobody knows when they end; whether the predictor was asked; and whether
        # the task was granted the first place.
        self.endless: set[str] = set()
        self.by_history = False
        self.granted = False
        self._horizon = horizon.timestamp()
        self._events: list[tuple[float, int, _Kind, str]] = []
        self._count = 0
        self._board = Board(standing)
        self._waiting: list[Entry] = sorted([*standing.ahead(), self.own], key=_place)
        self._served: set[str] = set()
        self._budget = turn_budget(self.pool)
        book = self.round.book(self.pool)
        self._account = counted(self._budget, book.tokens, book.tokens_at, self.round)
        self._enter_all()
        self._grant_at = self._granted_from()

    def run(self) -> float | Stopped:
        """Play until the task has its place; seconds since the epoch."""
        while True:
            self.steps += 1
            slots = self._fill()
            if slots is not None:
                return self.seconds + self._board.handed_over_in(slots)
            if not self._events:
                return Stopped.NOTHING_LEFT
            at = self._events[0][0]
            if at > self._horizon or self.looks > WORK_MAX:
                self.seconds = max(self.seconds, min(at, self._horizon))
                return Stopped.TOO_LONG
            self.seconds = max(self.seconds, at)
            while self._events and self._events[0][0] <= self.seconds and self.looks <= WORK_MAX:
                self.looks += 1
                _, _, kind, task_id = heapq.heappop(self._events)
                self._happen(kind, task_id)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def _at(self, at: float, kind: _Kind, task_id: str = "") -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, kind, task_id))

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
            self._board.runs[task.id] = Run(task, WEIGHTS[task.level], tuple(slots), at)
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
            if not self._board.yields(task, WEIGHTS[task.level]):
                for node_id, mask in slots_of(task):
                    kept[node_id] = kept.get(node_id, 0) | mask
                begun = replace(task, placements=task.promised, promised=())
                self._enter(begun, slots_of(task))
                continue
            # Promises to lower tasks are taken first.
            for node_id, mask in slots_of(task):
                held = joined(holders.get(node_id, {}).values())
                self._board.free.give((Slot(node_id, mask & ~held),) if mask & ~held else ())
        return kept

    def _enter(self, task: Task, slots: tuple[Slot, ...]) -> None:
        """A run with what will come of it."""
        pool, board = self.pool, self._board
        open_at = board.open_at(task, self.seconds)
        run = board.runs[task.id] = Run(task, WEIGHTS[task.level], slots, open_at)
        left = expected_left(pool, task, pool.attained(task, self._now()))
        self.by_history = self.by_history or (left is not None and task.expected_seconds is None)
        if left is None:
            self.endless.add(task.id)
        else:
            self._at(self.seconds + left, _Kind.ENDS, task.id)
        if self._yields(run):
            return
        sinks = sinks_at(task, pool.policy)
        if sinks is not None:
            self._at(max(self.seconds, sinks.timestamp()), _Kind.SINKS, task.id)
        self._order(run)

    def _order(self, run: Run) -> None:
        """A run that may be taken for others of its level, if it is of the task's own."""
        if run.weight != self.own.weight or not self.pool.discipline.preempts:
            return
        self._board.order(run)
        if run.open_at > self.seconds:
            self._at(run.open_at, _Kind.OPENS, run.task.id)
        rekey_at = run.task.marks.rekey_at
        if rekey_at is not None:
            self._at(max(self.seconds, rekey_at.timestamp()), _Kind.REKEYS, run.task.id)

    def _yields(self, run: Run) -> bool:
        """True for a run that gives way to the task; it goes as soon as it may be asked."""
        if not self._board.yields(run.task, run.weight):
            return False
        if run.open_at > self.seconds:
            self._at(run.open_at, _Kind.OPENS, run.task.id)
        else:
            self.endless.discard(run.task.id)
            self._board.ask(run)
        return True

    def _granted_from(self) -> float | None:
        """From when the task may be granted the first place; None: never."""
        task, numbers = self.own.task, self.pool.tempo.numbers
        if not self.pool.discipline.pays or self.round.marks_of(task).granted:
            return None
        since = (task.unserved_since or task.submitted_at).timestamp()
        rule, book = self.pool.tempo.rule, self.round.book(self.pool)
        budget = grant_budget(rule, numbers, self.pool.units)
        account = counted(budget, book.grants, book.grants_at, self.round)
        cost = grant_cost(rule, self.pool.size(task), self.pool.move_seconds(task))
        covered = budget.covered_at(account, min(budget.ceiling, cost))
        if covered is None:
            return None
        at = max(since + numbers.grant_after_seconds, covered, self.seconds)
        self._at(at, _Kind.WAKES)
        return at

    # What happens.

    def _happen(self, kind: _Kind, task_id: str) -> None:
        run = self._board.runs.get(task_id)
        if run is None:
            return
        if kind is _Kind.ENDS:
            self.endless.discard(task_id)
            self._board.leave(run)
        elif kind is _Kind.OPENS:
            self._yields(run)
        elif kind is _Kind.SINKS:
            self._sink(run)
        elif kind is _Kind.REKEYS and run.key is not None:
            finish = finish_of(self.round, self.pool, run.task.owner)
            marks = self.pool.discipline.slice_over(self.pool, run.task, self._now(), finish)
            run.task = replace(run.task, marks=marks)
            self._order(run)

    def _sink(self, run: Run) -> None:
        for demotion in self.pool.policy.demotions:
            if demotion.level is run.task.level:
                run.task = replace(run.task, level=demotion.to)
                run.weight = WEIGHTS[demotion.to]
                break
        if not self._yields(run):
            self._order(run)

    # Who starts.

    def _fill(self) -> tuple[Slot, ...] | None:
        """Place whoever can be; the task's own slots, if it is among them."""
        self._grant()
        # Shapes that found no place, and those for which too little comes after them in the order.
        stuck: set[Shape] = set()
        turnless: set[Shape] = set()
        turns, now = self.pool.discipline.preempts, self._now()
        for entry in list(self._waiting):
            self.looks += 1
            may_take = turns and entry.weight == self.own.weight and entry.shape not in turnless
            if entry.shape in stuck and not may_take:
                continue
            if not self._board.ready(entry, now) or self._behind(entry, stuck):
                continue
            slots = None
            if entry.shape not in stuck:
                self.looks += GIVEN_WORK
                slots = self._board.pick(entry)
            if slots is None:
                stuck.add(entry.shape)
                if may_take:
                    slots, turns = self._turn(entry)
                    turnless.update(() if slots else (entry.shape,))
            if slots is not None:
                if entry.id == self.own.id:
                    return slots
                self._start(entry, slots)
        return None

    def _grant(self) -> None:
        """The task is next once it went without service for long, and nobody for longer."""
        if self.granted or self._grant_at is None or self._grant_at > self.seconds:
            return
        for _, task_id in self.pool.unserved:
            self.looks += 1
            if task_id == self.own.id:
                self.granted = True
                place = next(at for at, e in enumerate(self._waiting) if e.id == self.own.id)
                self._waiting.insert(0, self._waiting.pop(place))
                return
            if task_id not in self._served and task_id not in self.pool.promised:
                return

    def _behind(self, entry: Entry, stuck: set[Shape]) -> bool:
        """True if an earlier one that found no place holds it back."""
        if self.pool.discipline.filling is Filling.GREEDY:
            return False
        return any(self.round.totals.competes(entry.shape, shape) for shape in stuck)

    def _start(self, entry: Entry, slots: tuple[Slot, ...]) -> None:
        pool, now = self.pool, self._now()
        self._waiting.remove(entry)
        self._served.add(entry.id)
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
        self._board.take(task, slots)
        self._enter(task, slots)

    def _turn(self, entry: Entry) -> tuple[tuple[Slot, ...] | None, bool]:
        """Its turn, if it can be paid; and whether those behind it may have theirs."""
        pool, board, size = self.pool, self._board, self.pool.size(entry.task)
        ratio = max(0.0, size - board.free.free_units(pool.group)) / size
        after = self._reach(entry, ratio)
        trial = board.free.copy()
        taken: list[Run] = []
        for key, task_id in reversed(board.level):
            self.looks += 1
            run = board.runs[task_id]
            if key <= after or self.looks > WORK_MAX:
                return None, True
            if run.open_at > self.seconds or pool.discipline.spares(entry.task, run.task):
                continue
            self.looks += GIVEN_WORK
            trial.give(run.slots)
            taken.append(run)
            if trial.fits(entry.shape) and board.pick(entry, trial) is not None:
                break
        else:
            return None, True
        victims = self._spare(entry, trial, taken)
        gone = sum(pool.size(run.task) for run in victims) / size
        least = min((run.key[0] for run in victims if run.key is not None), default=after)
        if least <= self._reach(entry, gone):
            return None, True
        if not self._pay(entry, sum(turn_cost(pool, run.task, self.seconds) for run in victims)):
            return None, False
        for run in victims:
            self._go(run, entry)
        return board.pick(entry), True

    def _spare(self, entry: Entry, trial: Capacity, taken: list[Run]) -> list[Run]:
        """Of the runs taken, last first, leave those alone that are not needed."""
        victims: list[Run] = []
        for run in reversed(taken):
            self.looks += GIVEN_WORK
            trial.take(run.slots)
            if not trial.fits(entry.shape) or self._board.pick(entry, trial) is None:
                trial.give(run.slots)
                victims.append(run)
        return victims

    def _reach(self, entry: Entry, ratio: float) -> float:
        if self.granted and entry.id == self.own.id:
            return float("-inf")
        return reach(self.round, self.pool, entry, ratio)

    def _pay(self, entry: Entry, cost: float) -> bool:
        budget = self._budget
        if not self.pool.discipline.pays:
            return True
        self._account = budget.accrued(self._account, self.seconds)
        first = self.granted and entry.id == self.own.id
        may = first or entitled(self.round, self.pool, entry.task)
        if not budget.covers(self._account, cost, entitled=may):
            at = budget.covered_at(self._account, cost, entitled=may)
            if at is not None:
                self._at(max(at, self.seconds + 1.0), _Kind.WAKES)
            return False
        self._account = spent(self._account, cost)
        return True

    def _go(self, run: Run, entry: Entry) -> None:
        """A run goes for another; it waits again, before the task or out of its way."""
        task, key = run.task, run.key
        self._board.ask(run)
        self.endless.discard(task.id)
        if key is None or key >= (self.own.key, self.own.id) or task.id == entry.id:
            return
        attained = self.pool.attained(task, self._now())
        back = replace(task, placements=(), run_started_at=None, run_seconds=attained)
        cluster = self._board.clusters.of(back)
        again = entry._replace(key=key[0], id=task.id, task=back, shape=task.shape, cluster=cluster)
        first = 1 if self.granted else 0
        insort(self._waiting, again, lo=first, key=_place)


def _place(entry: Entry) -> tuple[int, float, str]:
    return entry[:3]
