"""Limits: what a user or team may hold at once, per group and level.

All caps that match a task apply. A cap counts what its subject holds: a named user; a named team
as a whole; or, when it names neither, each user by themselves. An empty group or priority counts
all groups or levels together. Of the grants one decides (``libs/contracts/grants.py``): it
counts what the user holds in the task's group, of the runs for which it decides.

Only held capacity counts (from the assignment to the observed exit), and what ``decide`` assigns
or promises in the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from typing import NamedTuple, Protocol, TypeAlias

from libs.contracts.grants import deciding
from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.model.rows import Limit, LimitKey, Task
from services.scheduler.domain.model.values import LEVELS, WEIGHTS

# A row, and whose holdings it counts: of a cap the owner (empty: the one that the row names), of a
# grant the group and the owner.
Account: TypeAlias = tuple[LimitKey, str]

# The rows that limit, the smallest first; and the grant that decides.
_Matched: TypeAlias = tuple[tuple[Limit, ...], Limit | None]


class Claimant(Protocol):
    """Whose limits count: a task, or a user in a group."""

    @property
    def owner(self) -> str:
        """The user."""
        ...

    @property
    def team(self) -> str:
        """Their team; empty: none."""
        ...

    @property
    def group(self) -> str:
        """The group of nodes."""
        ...


class Need(NamedTuple):
    """What a run takes of a limit."""

    gpus: int
    nodes: int

    def of(self, unit: Unit) -> int:
        """The amount in this unit."""
        if unit is Unit.GPUS_OR_NODES:
            return self.gpus or self.nodes
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


def _is_across(limit: Limit) -> bool:
    return not limit.group and not limit.grant


def account_of(limit: Limit, task: Claimant) -> Account:
    """The row, and whose holdings it counts for this task."""
    if limit.grant:
        return (limit.key, f"{task.group}/{task.owner}")
    return (limit.key, "" if limit.user or limit.team else task.owner)


def exceeds(limit: Limit, held: int, amount: int) -> bool:
    """True if the row does not admit so much more."""
    return limit.forbids or (amount > 0 and held + amount > limit.limit)


class QuotaUsage:
    """Limits, and what is held of them. A fork counts on without changing its origin."""

    def __init__(self, limits: Mapping[LimitKey, Limit], held: Iterable[Task] = ()) -> None:
        # The limits in force.
        self._limits = {key: row for key, row in limits.items() if not row.removed}
        # By owner, then by group, team and level.
        self._matching: dict[str, dict[tuple[str, str, Priority], _Matched]] = {}
        self._held: dict[LimitKey, dict[str, int]] = {}
        self._base: QuotaUsage | None = None
        # Limits that count what is held in several groups together.
        self._across = {key for key, row in self._limits.items() if _is_across(row)}
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
        limits that did not count them before. A grant that comes or goes changes what the others
        count: all grants of its owners are counted again.
        """
        fresh = [row for row in rows if self._follow(row)]
        if not fresh:
            return
        caps = {row.key for row in fresh if not row.grant}
        owners: set[str] | None = {row.user for row in fresh}
        regranted: set[str] | None = {row.user for row in fresh if row.grant}
        owners, regranted = (None if "" in each else each for each in (owners, regranted))
        if regranted is None or regranted:
            self._forget_grants(regranted)
        for task in held(owners):
            need = held_need(task)
            again = regranted is None or task.owner in regranted
            for row in self.rows(task, task.level):
                if again if row.grant else row.key in caps:
                    self._count(row, task, need)

    def _follow(self, row: Limit) -> bool:
        """Apply a changed limit; True if holdings must be counted."""
        old = self._limits.pop(row.key, None)
        self._across.discard(row.key)
        if not row.removed:
            self._limits[row.key] = row
            if _is_across(row):
                self._across.add(row.key)
        if row.user:
            self._matching.pop(row.user, None)
        else:
            self._matching.clear()
        counted = old is not None and (old.unit, old.unlimited, old.level_max) == (
            row.unit,
            row.unlimited,
            row.level_max,
        )
        if row.removed or not counted:
            self._held.pop(row.key, None)
        if row.removed:
            return row.grant and old is not None
        return not counted

    def _forget_grants(self, owners: Collection[str] | None) -> None:
        """Forget what the grants count of these owners; None: of all."""
        for key, held in self._held.items():
            if key[-1]:
                for subject in (
                    [*held]
                    if owners is None
                    else [each for each in held if each.partition("/")[2] in owners]
                ):
                    del held[subject]

    def counted_accounts(self) -> dict[Account, int]:
        """What is held of each row by each subject, where it is anything."""
        return {
            (key, subject): amount
            for key, held in self._held.items()
            for subject, amount in held.items()
            if amount
        }

    def rows(self, task: Claimant, level: Priority) -> tuple[Limit, ...]:
        """The rows that limit a task at a level: all caps that match, and the grant that decides
        unless it permits any amount."""
        return self._matched(task, level)[0] if self._limits else ()

    def deciding(self, task: Claimant, level: Priority) -> Limit | None:
        """The grant that decides for a task at a level; None: there is none, so none limits it."""
        return self._matched(task, level)[1] if self._limits else None

    def _matched(self, task: Claimant, level: Priority) -> _Matched:
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
            rows = [self._limits.get((*names, False)) for names in combinations]
            grant = deciding(
                lambda names: self._limits.get((*names, True)),
                *(task.owner, task.team, task.group, level),
            )
            rows.append(grant and grant.at(level))
            in_force = (row for row in rows if row is not None)
            found = (tuple(sorted(in_force, key=lambda row: (row.limit, row.key))), grant)
            own[key] = found
        return found

    def charge(self, task: Task, level: Priority, need: Need) -> None:
        """Count what a task gets; a negative need is a release."""
        for row in self.rows(task, level):
            self._count(row, task, need)

    def _count(self, row: Limit, task: Task, need: Need) -> None:
        key, subject = account_of(row, task)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = {}
        held[subject] = held.get(subject, 0) + need.of(row.unit)

    def amount(self, account: Account) -> int:
        """How much one subject holds of one row."""
        held = self._held.get(account[0])
        own = held.get(account[1], 0) if held else 0
        return own if self._base is None else own + self._base.amount(account)

    def held(self, limit: Limit, task: Claimant) -> int:
        """How much the limit's subject holds, for a task to which the limit applies."""
        return self.amount(account_of(limit, task))

    def passed(self, task: Task, level: Priority, leaving: Iterable[Task] = ()) -> bool:
        """True if a limit is exceeded, even after the runs in ``leaving`` have ended."""
        rows = self.rows(task, level)
        if any(row.forbids for row in rows):
            return True
        over = {account_of(row, task): self.held(row, task) - row.limit for row in rows}
        for run in leaving:
            for account, amount in self.counted(run).items():
                if account in over:
                    over[account] -= amount
        return any(amount > 0 for amount in over.values())

    def counted(self, run: Task) -> dict[Account, int]:
        """What a run (or promise) takes of each limit that counts it."""
        need = held_need(run)
        return {account_of(row, run): need.of(row.unit) for row in self.rows(run, run.level)}

    def lacking(self, task: Task, level: Priority, need: Need) -> dict[Account, int]:
        """How far ``need`` more would exceed each limit; empty: none."""
        found: dict[Account, int] = {}
        for row in self.rows(task, level):
            amount = need.of(row.unit)
            over = self.held(row, task) + amount - row.limit
            if amount and over > 0:
                found[account_of(row, task)] = over
        return found

    def excess_of_move(self, run: Task, level: Priority) -> Excess | None:
        """The smallest limit that a run would exceed if it counted at another level, or None.

        Limits that count it already, over all levels, do not stop it.
        """
        need, counted = held_need(run), self.rows(run, run.level)
        for row in self.rows(run, level):
            amount, held = need.of(row.unit), self.held(row, run)
            if row not in counted and exceeds(row, held, amount):
                return Excess(row, held)
        return None

    def excess(self, task: Task, level: Priority, need: Need) -> Excess | None:
        """The smallest limit that ``need`` more would exceed, or None."""
        for row in self.rows(task, level):
            held = self.held(row, task)
            if exceeds(row, held, need.of(row.unit)):
                return Excess(row, held)
        return None


def auto_level(task: Task, need: Need, quota_usage: QuotaUsage, level_max: Priority) -> Priority:
    """The highest level at which the owner has quota left; IDLE if there is none.

    Levels up to ``level_max`` are open to everybody. A higher one is open only where the grant that
    decides names the level, or where a cap names both the level and this owner, or the owner's
    team. A grant over every level does not lift AUTO tasks, and neither does a cap for each user:
    it must not lift them to the level that it restricts.
    """
    for level in LEVELS:
        if WEIGHTS[level] > WEIGHTS[level_max] and not _is_opened(task, level, quota_usage):
            continue
        if quota_usage.excess(task, level, need) is None:
            return level
    return Priority.IDLE


def _is_opened(task: Task, level: Priority, quota_usage: QuotaUsage) -> bool:
    """True if a row opens a level to AUTO tasks of this owner."""
    grant = quota_usage.deciding(task, level)
    if grant is not None and grant.priority is level:
        return True
    return any(
        row.priority is level and (row.user or row.team)
        for row in quota_usage.rows(task, level)
        if not row.grant
    )
