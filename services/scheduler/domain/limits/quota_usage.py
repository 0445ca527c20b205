"""Limits: what a user or team may hold at once, per group and level.

All rows that match a task apply. A row counts what its subject holds: a named user; a named team
as a whole; or, when it names neither, each user by themselves. An empty group or priority counts
all groups or levels together. Only held capacity counts (from the assignment to the observed
exit), and what ``decide`` assigns or promises in the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from typing import NamedTuple, TypeAlias

from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.model.rows import Limit, LimitKey, Task
from services.scheduler.domain.model.values import LEVELS, WEIGHTS

# A row, and the owner whose holdings it counts (empty: the one that the row names).
Account: TypeAlias = tuple[LimitKey, str]


class Need(NamedTuple):
    """What a run takes of a limit."""

    gpus: int
    nodes: int

    def of(self, unit: Unit) -> int:
        """The amount in this unit."""
        return self.nodes if unit is Unit.NODES else self.gpus


class Excess(NamedTuple):
    """A limit that a run would exceed, and what its subject holds already."""

    limit: Limit
    held: int


def held_need(task: Task) -> Need:
    """What a task's live run holds, or what is promised to it."""
    placements = task.placements or task.promised
    nodes = len(placements)
    if nodes:
        for role in task.spec.roles:
            if role.auxiliary:
                nodes -= role.replicas
    return Need(sum(len(placement.gpus) for placement in placements), nodes)


def minus(need: Need) -> Need:
    """The need of a release."""
    return Need(-need.gpus, -need.nodes)


def _account(limit: Limit, task: Task) -> Account:
    subject = "" if limit.user or limit.team else task.owner
    return (limit.key, subject)


class QuotaUsage:
    """Limits, and what is held of them. A fork counts on without changing its origin."""

    def __init__(self, limits: Mapping[LimitKey, Limit], held: Iterable[Task] = ()) -> None:
        # The limits in force.
        self._limits = {key: row for key, row in limits.items() if not row.removed}
        # By owner, then by group, team and level.
        self._matching: dict[str, dict[tuple[str, str, Priority], tuple[Limit, ...]]] = {}
        self._held: dict[LimitKey, dict[str, int]] = {}
        self._base: QuotaUsage | None = None
        # Limits that count what is held in several groups together.
        self._across = {key for key, row in self._limits.items() if not row.group}
        for task in held:
            self.charge(task, task.level, held_need(task))

    @property
    def across(self) -> bool:
        """True if a limit counts what is held in several groups together."""
        return bool(self._across)

    def fork(self) -> QuotaUsage:
        """A copy that counts on from here; O(1)."""
        twin = QuotaUsage({})
        twin._limits, twin._across = self._limits, self._across
        twin._matching, twin._base = self._matching, self
        return twin

    def change(
        self, rows: Iterable[Limit], held: Callable[[Collection[str] | None], Iterable[Task]]
    ) -> None:
        """Apply changed limits. Forks are invalid afterwards.

        ``held``: the runs and promises of some owners (None: of all). They are counted only for
        limits that did not count them before.
        """
        fresh = {row.key: row.user for row in rows if self._follow(row)}
        if not fresh:
            return
        owners = set(fresh.values())
        for task in held(None if "" in owners else owners):
            need = held_need(task)
            for row in self.rows(task, task.level):
                if row.key in fresh:
                    self._count(row, task, need)

    def _follow(self, row: Limit) -> bool:
        """Apply a changed limit; True if its holdings must be counted."""
        old = self._limits.pop(row.key, None)
        self._across.discard(row.key)
        if not row.removed:
            self._limits[row.key] = row
            if not row.group:
                self._across.add(row.key)
        if row.user:
            self._matching.pop(row.user, None)
        else:
            self._matching.clear()
        counted = old is not None and old.unit is row.unit
        if row.removed or not counted:
            self._held.pop(row.key, None)
        return not row.removed and not counted

    def counted_accounts(self) -> dict[Account, int]:
        """What is held of each row by each subject, where it is anything."""
        return {
            (key, subject): amount
            for key, held in self._held.items()
            for subject, amount in held.items()
            if amount
        }

    def rows(self, task: Task, level: Priority) -> tuple[Limit, ...]:
        """The rows that apply to a task at a level."""
        if not self._limits:
            return ()
        own = self._matching.get(task.owner)
        if own is None:
            own = self._matching[task.owner] = {}
        key = (task.group, task.team, level)
        found = own.get(key)
        if found is None:
            combinations = product(
                {"", task.group},
                {"", task.owner},
                {"", task.team},
                {Priority.UNSPECIFIED, level},
            )
            rows = (self._limits.get(match) for match in combinations)
            in_force = (row for row in rows if row is not None)
            found = tuple(sorted(in_force, key=lambda row: (row.limit, row.key)))
            own[key] = found
        return found

    def charge(self, task: Task, level: Priority, need: Need) -> None:
        """Count what a task gets; a negative need is a release."""
        for row in self.rows(task, level):
            self._count(row, task, need)

    def _count(self, row: Limit, task: Task, need: Need) -> None:
        key, subject = _account(row, task)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = {}
        held[subject] = held.get(subject, 0) + need.of(row.unit)

    def amount(self, account: Account) -> int:
        """How much one subject holds of one row."""
        held = self._held.get(account[0])
        own = held.get(account[1], 0) if held else 0
        return own if self._base is None else own + self._base.amount(account)

    def held(self, limit: Limit, task: Task) -> int:
        """How much the limit's subject holds, for a task to which the limit applies."""
        return self.amount(_account(limit, task))

    def passed(self, task: Task, level: Priority, leaving: Iterable[Task] = ()) -> bool:
        """True if a limit is exceeded, even after the runs in ``leaving`` have ended."""
        over = {
            _account(row, task): self.held(row, task) - row.limit for row in self.rows(task, level)
        }
        for run in leaving:
            for account, amount in self.counted(run).items():
                if account in over:
                    over[account] -= amount
        return any(amount > 0 for amount in over.values())

    def counted(self, run: Task) -> dict[Account, int]:
        """What a run (or promise) takes of each limit that counts it."""
        need = held_need(run)
        return {_account(row, run): need.of(row.unit) for row in self.rows(run, run.level)}

    def lacking(self, task: Task, level: Priority, need: Need) -> dict[Account, int]:
        """How far ``need`` more would exceed each limit; empty: none."""
        found: dict[Account, int] = {}
        for row in self.rows(task, level):
            amount = need.of(row.unit)
            over = self.held(row, task) + amount - row.limit
            if amount and over > 0:
                found[_account(row, task)] = over
        return found

    def excess_of_move(self, run: Task, level: Priority) -> Excess | None:
        """The smallest limit that a run would exceed if it counted at another level, or None.

        Limits that count it already, over all levels, do not stop it.
        """
        need, counted = held_need(run), self.rows(run, run.level)
        for row in self.rows(run, level):
            amount, held = need.of(row.unit), self.held(row, run)
            if amount and row not in counted and held + amount > row.limit:
                return Excess(row, held)
        return None

    def excess(self, task: Task, level: Priority, need: Need) -> Excess | None:
        """The smallest limit that ``need`` more would exceed, or None."""
        for row in self.rows(task, level):
            amount = need.of(row.unit)
            held = self.held(row, task)
            if amount and held + amount > row.limit:
                return Excess(row, held)
        return None


def auto_level(task: Task, need: Need, quota_usage: QuotaUsage, level_max: Priority) -> Priority:
    """The highest level at which the owner has quota left; IDLE if there is none.

    Levels up to ``level_max`` are open to everybody. A higher one is open only where a row names
    both the level and this owner, or the owner's team: such a row grants nodes at that
    level. A row for each user (or for all levels) is a cap, and a cap must not lift AUTO tasks to
    the level that it restricts.
    """
    for level in LEVELS:
        rows = quota_usage.rows(task, level)
        given = any(row.priority is level and (row.user or row.team) for row in rows)
        if WEIGHTS[level] > WEIGHTS[level_max] and not given:
            continue
        if quota_usage.excess(task, level, need) is None:
            return level
    return Priority.IDLE
