"""Turns: a waiting task takes the nodes of runs of its own level that come after it in the order.

Last step of ``share.py``, at most once in ``pass_seconds``. The heads of the queues are looked at
in order; runs are taken from the largest key down until the gang fits, those not needed are
spared, and what that costs (node-seconds of being moved, and unsaved work of programs that cannot
be asked to save) is paid from the pool's budget. The first that cannot pay is saved for: nobody
behind it takes anything. Runs that are held or protected are not there for anybody.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING

from libs.contracts.messages import PreemptMode, ReasonCode
from services.scheduler.domain import grants, room
from services.scheduler.domain.accounts import RULE, counted
from services.scheduler.domain.lanes import Key
from services.scheduler.domain.model import Shape, Task
from services.scheduler.domain.order import LEVEL_OF_WEIGHT, Entry, Line, Outcome
from services.scheduler.domain.pool import Pool, saved_until, units_of
from services.scheduler.domain.round import Round
from services.scheduler.domain.timeshare.rule import is_big, preemption_budget, spent
from services.scheduler.domain.why import reason

if TYPE_CHECKING:
    from services.scheduler.domain.share import Sharing


def take_turns(sharing: Sharing) -> tuple[datetime | None, datetime | None]:
    """Make a pass if it is time for one; returns when the last was, and when the next is due."""
    round_, pool = sharing.round, sharing.pool
    if not pool.discipline.preempts or not pool.unserved:
        return pool.passed_at, None
    next_at = _next_pass(pool)
    if next_at is not None and next_at > round_.now:
        return pool.passed_at, next_at
    granted_due: datetime | None = None
    if pool.discipline.pays:
        granted, granted_due = grants.grant(round_, pool)
        if granted is not None:
            sharing.late[granted.id] = granted
    paid_at: datetime | None = None
    for weight in pool.lanes.weights():
        if weight in pool.running and weight in LEVEL_OF_WEIGHT:
            paid_at = _Turns(sharing, weight).run()
            if paid_at is not None:
                break
    return round_.now, min((m for m in (paid_at, granted_due) if m is not None), default=None)


def _next_pass(pool: Pool) -> datetime | None:
    if pool.passed_at is None:
        return None
    return pool.passed_at + timedelta(seconds=pool.policy.timeshare.pass_seconds)


def turn_cost(pool: Pool, task: Task, now: float) -> float:
    """What a turn costs that this run pays with: one that can be asked saves before it goes."""
    unsaved = 0.0
    if task.preempt_mode is PreemptMode.KILL:
        unsaved = max(0.0, now - saved_until(task))
    return pool.size(task) * (unsaved + pool.move_seconds(task))




class _Turns:
    """One pass over one level of one pool."""

    def __init__(self, sharing: Sharing, weight: int) -> None:
        self.sharing = sharing
        self.round: Round = sharing.round
        self.pool: Pool = sharing.pool
        self.weight = weight
        self.lead = self.pool.discipline.lead(self.round.now)
        # What may be taken, in order.
        self.runs: list[Key] = self._open_runs()
        self.used: set[str] = set()
        self.gone_units = 0.0
        self.paid_at: datetime | None = None
        self._behind: list[float] | None = None
        self._there = 0.0

    def _open_runs(self) -> list[Key]:
        round_, pool, row = self.round, self.pool, self.pool.running[self.weight]
        if not pool.held_until and not round_.moved and not round_.marks:
            if pool.protected_seconds <= 0:
                return row
        found: list[Key] = []
        fresh = False
        for key, task_id in row:
            task = round_.index.tasks[task_id]
            marks = round_.marks_of(task)
            if marks.held_until is not None and marks.held_until > round_.now:
                continue
            if room.may_go(round_, pool, task):
                new = marks is not task.marks
                fresh = fresh or new
                found.append((pool.key(marks), task_id) if new else (key, task_id))
        return sorted(found) if fresh else found

    def run(self) -> datetime | None:
        """Look at the heads in order; when the task that is saved for can pay, or None."""
        if not self.runs:
            return None
        self._there = self.round.free.free_units(self.pool.group) + self.sharing.coming_units()
        fixed = not self.pool.clusters
        line = Line(self.pool.lanes, self._make, self._newcomers(), fixed=fixed)
        line.walk(self._look, wide=True, worth=self._worth)
        return self.paid_at

    def _newcomers(self) -> list[Entry]:
        """Those who came in this round are not in the lanes yet."""
        round_ = self.round
        found: list[Entry] = []
        for task_id, task in self.sharing.late.items():
            if task_id in round_.moved or task_id in round_.served:
                continue
            entry = self.sharing.entry(task)
            if entry.weight == self.weight:
                found.append(entry)
        return found

    def _make(self, task_id: str, key: float) -> Entry | None:
        if task_id in self.round.served:
            return None
        return self.sharing.make(task_id, key)

    def _worth(self, weight: int, shape: Shape) -> bool:
        return weight == self.weight and self.round.totals.fits_now(shape)

    def _units_behind(self, count: int) -> float:
        """Node equivalents of so many of the open runs, from the end."""
        if self._behind is None:
            sizes = self.pool.sizes
            self._behind = [
                0.0, *accumulate(sizes[task_id] for _, task_id in reversed(self.runs))
            ]
        return self._behind[count]

    def _look(self, entry: Entry) -> Outcome:
        if entry.weight != self.weight:
            return Outcome.STUCK
        count = len(self.runs) - bisect_right(self.runs, (entry.key + self.lead, entry.id))
        if not count:
            # Nobody comes after it, so nobody comes after those behind it.
            return Outcome.OVER
        aside = self.sharing.aside(entry)
        if aside is not None:
            return aside
        wanted = units_of(entry.shape, self.pool.width)
        there = self._units_behind(count) - self.gone_units + self._there
        if there < wanted - ALMOST:
            return Outcome.STUCK
        return self._take(entry, count)

    def _take(self, entry: Entry, count: int) -> Outcome:
        round_, pool = self.round, self.pool
        trial = round_.free.copy()
        trial.give(round_.coming(pool))
        taken: list[Task] = []
        for _, task_id in reversed(self.runs[-count:]):
            if task_id in self.used or task_id in round_.moved:
                continue
            task = round_.index.tasks[task_id]
            trial.give(round_.index.slots(task))
            taken.append(task)
            if trial.fits(entry.shape) and room.pick(round_, pool, entry, trial) is not None:
                break
        else:
            return Outcome.STUCK
        victims = room.spare(round_, pool, entry, trial, taken)
        if not self._pay(entry, sum(turn_cost(pool, task, round_.seconds) for task in victims)):
            # It is saved for: nobody behind it takes anything.
            return Outcome.OVER
        names = {"task": entry.id, "priority": entry.level.value}
        room.send(round_, victims, entry, reason(ReasonCode.TURN_OF, names=names))
        for task in victims:
            self.used.add(task.id)
            self.gone_units += pool.size(task)
        slots = room.pick(round_, pool, entry, trial)
        assert slots is not None, "what was spared was not needed"
        self.sharing.promise(entry, slots)
        return Outcome.SERVED

    def _pay(self, entry: Entry, cost: float) -> bool:
        """Pay for a turn; else note when the budget will be enough."""
        round_, pool = self.round, self.pool
        if not pool.discipline.pays:
            return True
        numbers = pool.policy.timeshare
        budget = preemption_budget(RULE, numbers, pool.units, numbers.restart_seconds)
        account = counted(budget, round_.book(pool).tokens, round_.book(pool).tokens_at, round_)
        granted = round_.marks_of(entry.task).granted
        entitled = granted or is_big(RULE, pool.size(entry.task) / max(pool.units, 1e-9))
        if not budget.covers(account, cost, entitled=entitled):
            at = budget.covered_at(account, cost, entitled=entitled)
            self.paid_at = None if at is None else round_.after(max(1.0, at - round_.seconds))
            return False
        left = spent(account, cost)
        round_.books[pool.group] = replace(
            round_.book(pool), tokens=left.tokens, tokens_at=round_.now
        )
        return True


ALMOST = 1e-6
