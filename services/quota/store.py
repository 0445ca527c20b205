"""quota's rows and all queries on them. Called by ``handlers.py`` inside a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import Priority, Quota, Unit
from libs.service.prune import PruneRule, aged, nth_newest, oldest_of
from libs.store.port import Op, Order, Tx, Where

QUOTA_CHANGES = "quota_changes"


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One cap or grant. A removed one stays, so that its removal can be published again."""

    scope: str
    version: int
    removed: bool
    group: str
    user: str
    team: str
    priority: Priority
    unit: Unit
    limit: int
    changed_by: str
    changed_at: datetime
    grant: bool = False
    # A grant without a number.
    unlimited: bool = False
    # Of the site's default: no level above it is permitted.
    level_max: Priority = Priority.UNSPECIFIED
    # When the row is removed; None: never.
    expires_at: datetime | None = None
    # It was removed because that time was over.
    expired: bool = False


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A number that only grows."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The owner of a task, as the scheduler publishes it."""

    task_id: str
    owner: str
    team: str
    group: str
    # When its first event came; None once a prune has found a run of it, because the task is then
    # deleted with its last run.
    heard_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """The ledger: one run's use. ``recorded``: start, end and holder are known and published."""

    task_id: str
    attempt: int
    gpus: int
    nodes: int
    started_at: datetime | None
    ended_at: datetime | None
    recorded: bool


async def next_version(tx: Tx) -> int:
    """Count one more change of the quotas."""
    before = await tx.get(CounterRow, QUOTA_CHANGES)
    after = CounterRow(QUOTA_CHANGES, (before.value if before else 0) + 1)
    tx.put(after)
    return after.value


async def all_quotas(tx: Tx) -> Sequence[QuotaRow]:
    """Every limit, those taken away included, in the order of their changes."""
    return await tx.select(QuotaRow, order_by=[Order("version")])


async def rows_of(tx: Tx, quota: Quota, limit: int) -> Sequence[QuotaRow]:
    """The caps and grants in force of the user and team of ``quota``, at any level of any group."""
    where = [Where("user", Op.EQ, quota.user), Where("team", Op.EQ, quota.team)]
    where.append(Where("removed", Op.EQ, value=False))
    return await tx.select(QuotaRow, *where, order_by=[Order("version")], limit=limit)


async def first_expiring(tx: Tx, limit: int) -> Sequence[QuotaRow]:
    """The rows that expire next, the earliest first."""
    return await tx.select(
        QuotaRow,
        Where("removed", Op.EQ, value=False),
        Where("expires_at", Op.NOT_NULL),
        order_by=[Order("expires_at")],
        limit=limit,
    )


async def run_of(tx: Tx, task_id: str, attempt: int) -> RunRow:
    """The ledger's row of a run; a new one if there is none yet."""
    row = await tx.get(RunRow, task_id, attempt)
    if row is not None:
        return row
    return RunRow(
        task_id=task_id,
        attempt=attempt,
        gpus=0,
        nodes=0,
        started_at=None,
        ended_at=None,
        recorded=False,
    )


async def open_runs_of(tx: Tx, task_id: str) -> Sequence[RunRow]:
    """A task's runs whose use is not in the ledger yet."""
    return await tx.select(
        RunRow,
        Where("task_id", Op.EQ, task_id),
        Where("recorded", Op.EQ, value=False),
    )


async def with_open_runs(tx: Tx, task_ids: Sequence[str]) -> set[str]:
    """Those of these tasks that have runs whose use is not in the ledger yet."""
    rows = await tx.select(
        RunRow,
        Where("task_id", Op.IN, task_ids),
        Where("recorded", Op.EQ, value=False),
    )
    return {row.task_id for row in rows}


async def newest_use(tx: Tx, limit: int) -> Sequence[RunRow]:
    """The recorded runs that ended last, in the order of their ends."""
    rows = await tx.select(
        RunRow,
        Where("recorded", Op.EQ, value=True),
        order_by=[Order("ended_at", descending=True)],
        limit=limit,
    )
    return rows[::-1]


def prune_rules(keep: timedelta) -> tuple[PruneRule, ...]:
    """Return what quota prunes: the ledger's runs, tasks of which no run is left, tasks that never
    ran, and removed quotas.

    Nothing that could set a removed quota again is on its way after that time, and a reader that
    has not received its removal by then has to be rebuilt."""
    return (
        PruneRule(
            "runs",
            keep,
            lambda tx: oldest_of(tx, RunRow, "ended_at", *_HAS_ENDED),
            drop_runs,
            lambda tx, newer: nth_newest(tx, RunRow, "ended_at", newer, *_HAS_ENDED),
        ),
        PruneRule(
            "tasks",
            keep,
            lambda tx: oldest_of(tx, TaskRow, "heard_at", *_HAS_NO_RUN),
            drop_tasks,
            lambda tx, newer: nth_newest(tx, TaskRow, "heard_at", newer, *_HAS_NO_RUN),
        ),
        aged(
            "removed quotas",
            keep,
            QuotaRow,
            ["scope"],
            "changed_at",
            Where("removed", Op.EQ, value=True),
        ),
    )


_HAS_ENDED = (Where("ended_at", Op.NOT_NULL),)
_HAS_NO_RUN = (Where("heard_at", Op.NOT_NULL),)


async def drop_runs(tx: Tx, before: datetime, limit: int) -> int:
    """Drop the runs that ended first, also those that never started; returns how many.

    A task goes with its last run. Should it run again after all, its next change of state, which
    comes with each run, restores its owner.
    """
    old = await tx.select(
        RunRow, Where("ended_at", Op.LT, before), order_by=[Order("ended_at")], limit=limit
    )
    for row in old:
        tx.delete(RunRow, row.task_id, row.attempt)
    task_ids = sorted({row.task_id for row in old})
    if task_ids:
        left = {row.task_id for row in await tx.select(RunRow, Where("task_id", Op.IN, task_ids))}
        for task_id in task_ids:
            if task_id not in left:
                tx.delete(TaskRow, task_id)
    return len(old)


async def drop_tasks(tx: Tx, before: datetime, limit: int) -> int:
    """Drop tasks without any run; returns how many it processed. Those with runs are deleted with
    their last run: each is checked once.

    A task that waits for longer than this is dropped as well: its next change of state restores
    its owner.
    """
    old = await tx.select(
        TaskRow, Where("heard_at", Op.LT, before), order_by=[Order("heard_at")], limit=limit
    )
    if old:
        runs = await tx.select(RunRow, Where("task_id", Op.IN, [row.task_id for row in old]))
        ran = {row.task_id for row in runs}
        for row in old:
            if row.task_id in ran:
                tx.put(replace(row, heard_at=None))
            else:
                tx.delete(TaskRow, row.task_id)
    return len(old)
