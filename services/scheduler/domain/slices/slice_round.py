"""Slice rounds: a waiting task takes the nodes of later runs of its own level.

A slice round is open at most once in ``pass_seconds``. ``allocate.py`` then calls ``take`` for each
task in order that finds no place. Runs are taken from the largest order key down until the gang
fits, and those not needed are spared. The cost (node-seconds of being moved, and unsaved work of
programs that cannot be requested to save) is paid from the pool's preemption budget. If a task
cannot pay, the budget is saved for it: no later task takes anything. Runs that are held or
protected are never taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from libs.contracts.messages import PreemptMode, ReasonCode
from services.scheduler.domain.blockers import flood_blocks_slice
from services.scheduler.domain.disciplines.timeshare.rule import spent
from services.scheduler.domain.facts.pool import Pool, saved_until
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import Key
from services.scheduler.domain.placement.slots import Slot
from services.scheduler.domain.preemption import victims
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices import order_keys
from services.scheduler.domain.slices.budgets import account_now, may_use_reserve, slice_budget

ALMOST = 1e-6


def slice_end_cost(pool: Pool, task: Task, now: float) -> float:
    """What it costs to preempt this run in a slice round: one that can save does so first."""
    unsaved = 0.0
    if task.preempt_mode is PreemptMode.KILL or task.is_silent:
        unsaved = max(0.0, now - saved_until(task))
    return pool.size(task) * (unsaved + pool.move_seconds(task))


class SliceRound:
    """The slice round of one pool; while it is closed, no run is preempted by equals."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        self.due_at: datetime | None = None
        self.open = False
        self.slice_round_at = pool.slice_round_at
        if pool.discipline.preempts and pool.unserved:
            next_at = self._next_round_at()
            self.open = next_at is None or next_at <= round_.now
            self.due_at = None if self.open else next_at
        if self.open:
            self.slice_round_at = round_.now
        # True during a walk in which no task may preempt equals.
        self.paused = False
        # The task that the budget is saved for, once there is one.
        self._saving = False
        # How many released runs are counted, and what those and the leaving ones hold.
        self._releasing: tuple[int, float] | None = None
        self._used: set[str] = set()
        self._rows: dict[int, _Row] = {}

    def _next_round_at(self) -> datetime | None:
        slice_round_at = self._pool.slice_round_at
        if slice_round_at is None or slice_round_at > self._round.now:
            # The first slice round, or the clock was set back.
            return None
        return slice_round_at + timedelta(seconds=self._pool.policy.timeshare.pass_seconds)

    def worth(self, weight: int) -> bool:
        """True if a task of this weight might preempt an equal."""
        return self.open and not self.paused and not self._saving and weight in self._pool.running

    def _row(self, weight: int) -> _Row:
        found = self._rows.get(weight)
        if found is None:
            found = self._rows[weight] = _Row(self._round, self._pool, weight)
        return found

    def releasing_units(self) -> float:
        """Node equivalents that leaving runs hold, promised or not."""
        pool, released = self._pool, self._round.releasing.get(self._pool.group, [])
        if self._releasing is None:
            self._releasing = 0, sum(map(pool.size, pool.leaving.values()))
        count, units = self._releasing
        for task in released[count:]:
            units += pool.size(task)
        self._releasing = len(released), units
        return units

    def take(self, entry: Entry) -> tuple[Slot, ...] | None:
        """Slots for the task once the runs that are preempted here have left, or None.

        Only for one that is ``worth`` it.
        """
        round_, pool = self._round, self._pool
        row = self._row(entry.weight)
        size = pool.size(entry.task)
        there = round_.free.free_units(pool.group) + self.releasing_units()
        ratio = max(0.0, size - there) / size
        after = self._reach(entry, ratio)
        count = row.after(after, entry.id)
        if not count or there + row.units(count) < pool.least_units(entry.shape) - ALMOST:
            return None
        if flood_blocks_slice(round_, pool, entry):
            return None
        return self._take(entry, row, count)

    def _reach(self, entry: Entry, ratio: float) -> float:
        """The key beyond which runs may be taken if they hold this part of the needed nodes."""
        discipline, round_ = self._pool.discipline, self._round
        lead = discipline.lead(round_.now)
        order_key = round_.order_key_of(entry.task)
        if order_key.granted:
            return entry.key + lead
        return discipline.reach(self._pool, entry.task, order_key, entry.key, ratio) + lead

    def _take(self, entry: Entry, row: _Row, count: int) -> tuple[Slot, ...] | None:
        round_, pool = self._round, self._pool

        def search(domain: str | None) -> victims.Trial | None:
            trial = victims.Trial(round_, pool, entry, inside=domain is not None)
            for task in self._may_be_taken(entry, row, count):
                if domain is not None and not victims.touches(round_, pool, task, domain):
                    continue
                trial.give(task)
                if trial.pick() is not None:
                    trial.spare()
                    return trial if self._later(entry, row, trial.taken, count) else None
            return None

        trial = victims.least_disruptive(round_, pool, search)
        if trial is None:
            return None
        taken, slots = trial.taken, trial.pick()
        if not self._pay(entry, sum(slice_end_cost(pool, task, round_.seconds) for task in taken)):
            self._saving = True
            return None
        victims.preempt(round_, pool, taken, entry, ReasonCode.TURN_OF)
        self._used.update(task.id for task in taken)
        return slots

    def _may_be_taken(self, entry: Entry, row: _Row, count: int) -> Iterator[Task]:
        """Of the last so many runs those that the task may take, from the end."""
        round_, discipline = self._round, self._pool.discipline
        for _, task_id in reversed(row.runs[-count:]):
            task = round_.index.tasks[task_id]
            if not (
                task_id in self._used
                or task_id in round_.moved
                or discipline.spares(entry.task, task)
                or self._covered_better(entry, task)
            ):
                yield task

    def _covered_better(self, entry: Entry, task: Task) -> bool:
        """True if a guarantee covers the run better than the waiting task."""
        clusters = self._pool.clusters
        if not clusters or (entry.cluster and clusters.of(task) == entry.cluster):
            return False
        return self._round.coverage(self._pool)[task.id] < entry.depth

    def _later(self, entry: Entry, row: _Row, victims: list[Task], count: int) -> bool:
        """True if the task reaches all of them, for so many as they are."""
        if not victims:
            return False
        pool = self._pool
        ratio = sum(map(pool.size, victims)) / pool.size(entry.task)
        first = row.key({task.id for task in victims}, count)
        return first > self._reach(entry, ratio)

    def _pay(self, entry: Entry, cost: float) -> bool:
        """Pay for the preemptions; else note when the budget will be enough."""
        round_, pool = self._round, self._pool
        if not pool.discipline.pays:
            return True
        ledger, budget = round_.ledger_of(pool), slice_budget(pool)
        account = account_now(budget, ledger.tokens, ledger.tokens_at, round_)
        may = may_use_reserve(round_, pool, entry.task)
        if not budget.covers(account, cost, entitled=may):
            at = budget.covered_at(account, cost, entitled=may)
            if at is not None:
                self.due_at = round_.after(max(1.0, at - round_.seconds))
            return False
        left = spent(account, cost)
        round_.ledgers[pool.group] = replace(ledger, tokens=left.tokens, tokens_at=round_.now)
        return True


class _Row:
    """The runs of one level that may be taken, in order."""

    def __init__(self, round_: Round, pool: Pool, weight: int) -> None:
        self.runs: list[Key] = _open_runs(round_, pool, weight)
        self._sizes = pool.sizes
        # What the last so many hold, as far as it was asked for.
        self._behind = [0.0]

    def after(self, key: float, task_id: str) -> int:
        """How many of them come after a key."""
        return len(self.runs) - bisect_right(self.runs, (key, task_id))

    def units(self, count: int) -> float:
        """Node equivalents of so many of them, from the end."""
        behind, runs = self._behind, self.runs
        while len(behind) <= count:
            behind.append(behind[-1] + self._sizes[runs[-len(behind)][1]])
        return behind[count]

    def key(self, task_ids: Container[str], count: int) -> float:
        """The smallest key of these among the last so many."""
        return min(key for key, task_id in self.runs[-count:] if task_id in task_ids)


def _open_runs(round_: Round, pool: Pool, weight: int) -> list[Key]:
    row = pool.running[weight]
    plain = not pool.held_until and not round_.moved and not round_.order_keys
    if plain and pool.protected_seconds <= 0 and not pool.discipline.by_user:
        return row
    # Their order is the stored one, except for keys noted in this round and owners' tags.
    tasks = round_.index.tasks
    same = pool.protected_seconds <= 0 and not pool.discipline.by_user
    noted = [task_id for task_id in round_.order_keys if task_id in tasks and tasks[task_id].holds]
    changed = pool.held_until.union(round_.moved, noted) if same else None
    found = [] if changed is None else [each for each in row if each[1] not in changed]
    for _, task_id in row:
        if changed is not None and task_id not in changed:
            continue
        task = tasks[task_id]
        order_key = round_.order_key_of(task)
        if order_key.held_until is not None and order_key.held_until > round_.now:
            continue
        if victims.is_preemptible(round_, pool, task):
            found.append((order_keys.current_key(round_, pool, task, pool.key(order_key)), task_id))
    return sorted(found)
