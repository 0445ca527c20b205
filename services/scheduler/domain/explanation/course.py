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
from math import inf

from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.explanation.board import Board, Run, expected_left
from services.scheduler.domain.explanation.purse import Purse
from services.scheduler.domain.explanation.standing import Standing
from services.scheduler.domain.lifecycle import PREEMPTING, QUEUED, RUNNING
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.moments import sinks_at
from services.scheduler.domain.order import Entry
from services.scheduler.domain.passes import turn_cost
from services.scheduler.domain.placement.masks import joined
from services.scheduler.domain.placement.place import Slot, placements_of, slots_of
from services.scheduler.domain.reserve import Reservation

# Looks at tasks and runs, all in all: what a leader can spare for one question.
WORK_MAX = 40_000
# A run that is tried as a victim counts for so many looks, a place that is searched too; so many
# tasks that are passed over count for one.
GIVEN_WORK = 10
PASSED_OVER = 10
# Up to so many waiting tasks those behind the task are played too.
AROUND_MAX = 500
# Moments are sums of many.
ALMOST = 1e-6


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
        self._board = Board(standing, now)
        around = standing.around(AROUND_MAX)
        self.whole = around is not None  # those behind it are looked at, too
        waiting = [*(standing.ahead() if around is None else around), self.own]
        self._waiting = sorted(map(self._marked, waiting), key=_place)
        self._served: set[str] = set()
        self._purse = Purse(standing)
        passed_at = self.pool.passed_at
        self._passed = None if passed_at is None else min(passed_at.timestamp(), self.seconds)
        self._enter_all()
        self._grant_at = self._purse.granted_from(self.own.task)
        if self._grant_at is not None:
            self._at(self._grant_at, _Kind.WAKES)

    def run(self) -> float | Stopped:
        """Play until the task has its place; seconds since the epoch."""
        while True:
            self.steps += 1
            slots = self._place_all()
            if slots is not None:
                return self.seconds + self._board.handed_over_in(slots)
            if not self._events:
                return Stopped.NOTHING_LEFT
            at = self._events[0][0]
            if at > self._horizon or self.looks > WORK_MAX:
                self.seconds = max(self.seconds, min(at, self._horizon))
                return Stopped.TOO_LONG
            self.seconds = max(self.seconds, at)
            self._board.now = datetime.fromtimestamp(self.seconds, UTC)
            while self._events and self._events[0][0] <= self.seconds and self.looks <= WORK_MAX:
                self.looks += 1
                _, _, kind, task_id = heapq.heappop(self._events)
                self._happen(kind, task_id)

    def _marked(self, entry: Entry) -> Entry:
        marks = self.round.marks_of(entry.task)
        return entry._replace(task=replace(entry.task, marks=marks))

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
            self._board.free.give_amounts(slots_of(task), task.shape.each)
        return kept

    def _enter(self, task: Task, slots: tuple[Slot, ...]) -> None:
        """A run with what will come of it."""
        pool, board = self.pool, self._board
        task = board.begun(task)
        open_at = board.open_at(task)
        run = board.runs[task.id] = Run(task, WEIGHTS[task.level], slots, open_at)
        left = expected_left(pool, task, pool.attained(task, board.now))
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
            board, discipline = self._board, self.pool.discipline
            finish = board.finish(run.task.owner)
            marks = discipline.slice_over(self.pool, run.task, board.now, finish)
            run.task = board.noted(run.task, marks)
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

    def _place_all(self) -> tuple[Slot, ...] | None:
        """Place whoever can be; the task's own slots, if it is among them."""
        self._grant()
        self._reorder()
        turns = self._open()
        # What is free goes out in order first; who still waits then may take a turn.
        filled = turns and self.pool.discipline.pays
        slots = self._walk(turns=False) if filled else None
        return self._walk(turns=turns) if slots is None else slots

    def _open(self) -> bool:
        """True at a pass; else the next one is noted."""
        if not self.pool.discipline.preempts:
            return False
        length = self.pool.policy.timeshare.pass_seconds
        if self._passed is not None and self.seconds < self._passed + length - ALMOST:
            self._at(self._passed + length, _Kind.WAKES)
            return False
        self._passed = self.seconds
        return True

    def _walk(self, *, turns: bool) -> tuple[Slot, ...] | None:
        # Shapes that found no place; those for which too little comes after them in the order; and
        # by rank, what the first one that found no place has reserved.
        stuck: set[Shape] = set()
        turnless: set[Shape] = set()
        reserved: dict[int, Reservation] = {}
        board = self._board
        self.looks += len(self._waiting) // PASSED_OVER
        for entry in list(self._waiting):
            may_take = turns and entry.weight == self.own.weight and entry.shape not in turnless
            if entry.shape in stuck and not may_take:
                continue
            self.looks += 1
            if not board.ready(entry) or board.behind(entry, stuck):
                continue
            slots = None
            if entry.shape not in stuck:
                self.looks += GIVEN_WORK
                slots = self._pick(entry, reserved)
            if slots is None and self.pool.discipline.filling is not Filling.RESERVE:
                stuck.add(entry.shape)
            if slots is None and may_take:
                slots, turns = self._turn(entry)
                turnless.update(() if slots else (entry.shape,))
            if slots is not None:
                if entry.id == self.own.id:
                    return slots
                self._start(entry, slots)
        return None

    def _pick(self, entry: Entry, reserved: dict[int, Reservation]) -> tuple[Slot, ...] | None:
        """A place in what is free, beside what an earlier one has reserved."""
        if entry.rank in reserved:
            return self._board.beside(reserved[entry.rank], entry)
        slots = self._board.pick(entry)
        if slots is None and self.pool.discipline.filling is Filling.RESERVE:
            self.looks += GIVEN_WORK + len(self._board.runs)
            reserved[entry.rank] = self._board.reserve(entry)
        return slots

    def _reorder(self) -> None:
        """Where the order follows what owners had, it changes with everything that starts."""
        if not self.pool.discipline.by_user:
            return
        self.looks += (len(self._waiting) + len(self._board.level)) // PASSED_OVER
        fresh = [each._replace(key=self._board.key_of(each.task)) for each in self._waiting]
        self._waiting = sorted(fresh, key=_place)
        self.own = next(each for each in self._waiting if each.id == self.own.id)
        self._board.reorder()

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

    def _start(self, entry: Entry, slots: tuple[Slot, ...]) -> None:
        pool, board, waits = self.pool, self._board, entry.task
        self._waiting.remove(entry)
        self._served.add(entry.id)
        marks = pool.discipline.starting(pool, waits, board.now, board.finish(waits.owner))
        task = replace(
            board.noted(waits, marks),
            state=RUNNING,
            level=entry.level,
            attempt=waits.attempt + 1,
            placements=placements_of(slots, waits.spec, self.round.index.nodes),
            run_started_at=board.now,
        )
        board.take(task, slots)
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
            trial.give(run.slots, run.task.shape.each)
            taken.append(run)
            if trial.fits(entry.shape) and board.pick(entry, trial) is not None:
                break
        else:
            return None, True
        self.looks += GIVEN_WORK * len(taken)
        victims = board.needed(entry, trial, taken)
        gone = sum(pool.size(run.task) for run in victims) / size
        least = min((run.key[0] for run in victims if run.key is not None), default=after)
        if least <= self._reach(entry, gone):
            return None, True
        if not self._pay(entry, sum(turn_cost(pool, run.task, self.seconds) for run in victims)):
            return None, False
        for run in victims:
            self._go(run, entry)
        return board.pick(entry), True

    def _reach(self, entry: Entry, ratio: float) -> float:
        if self.granted and entry.id == self.own.id:
            return float("-inf")
        return self._board.reach(entry, ratio)

    def _pay(self, entry: Entry, cost: float) -> bool:
        first = self.granted and entry.id == self.own.id
        at = self._purse.pay(entry, cost, self.seconds, first=first)
        if at is not None and at < inf:
            self._at(max(at, self.seconds + 1.0), _Kind.WAKES)
        return at is None

    def _go(self, run: Run, entry: Entry) -> None:
        """A run goes for another, and waits again; unless it is behind all that is looked at."""
        pool, board, task = self.pool, self._board, run.task
        attained = pool.attained(task, board.now)
        board.ask(run)
        self.endless.discard(task.id)
        back = replace(task, placements=(), run_started_at=None, run_seconds=attained, state=QUEUED)
        marks = pool.discipline.waiting(pool, back, board.now, board.finish(task.owner))
        back = board.noted(back, marks)
        again = entry._replace(
            key=board.key_of(back),
            id=task.id,
            task=back,
            shape=task.shape,
            cluster=board.clusters.of(back),
        )
        if self.whole or again[:3] < self.own[:3]:
            insort(self._waiting, again, lo=1 if self.granted else 0, key=_place)


def _place(entry: Entry) -> tuple[int, float, str]:
    return entry[:3]
