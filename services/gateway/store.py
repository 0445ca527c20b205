"""Reading and writing the gateway's rows, in a transaction that the caller has opened.

Called by the routes, the handlers and the housekeeping. Pages are keyset pages: a page goes on
after the last row of the one before, so rows that come or go meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeGuard, TypeVar

import orjson

from libs.service.prune import PruneRule, aged, nth_newest, oldest_of
from libs.store.port import Op, Order, Tx, UnreadableRowError, Where
from services.gateway.problems import invalid
from services.gateway.reports import Limits, Sample, add, extended, progress, tail_of, whole
from services.gateway.rows import (
    AcceptedRow,
    AuditRow,
    EventHeadRow,
    EventRow,
    LoginCodeRow,
    LoginUseRow,
    MetricsRow,
    MetricTailRow,
    NodeRow,
    ProgressRow,
    QuotaRow,
    RunRow,
    SessionRow,
    TaskRow,
    TokenRow,
    TokenUseRow,
    UsageRow,
)
from services.gateway.settings import GatewaySettings
from services.gateway.sight import Conditions, Sight

R = TypeVar("R")
HEAD = "log"
# Every row is seen.
EVERYTHING: tuple[Conditions, ...] = ((),)
FILTER_DIGEST_BYTES = 6
# Of so many tasks at a time, with so many attempts in all, running times are summed.
TASKS_SUMMED_MAX = 100
RUNS_SUMMED_MAX = 5_000
# The columns of orders that hold whole numbers; every other one holds text.
_NUMBERS = frozenset({"priority_order", "version"})
_INT64 = range(-(2**63), 2**63)
# Rows of metrics, some 20 kB each, that are forgotten in one transaction.
METRICS_DROPPED_MAX = 100


@dataclass(frozen=True, slots=True)
class Sort:
    """An order: a column, and the unique column that decides between equals."""

    column: str
    descending: bool
    key: str
    key_descending: bool


# Of rows whose ids grow with time.
NEWEST = Sort("id", True, "id", True)


@dataclass(frozen=True, slots=True)
class After:
    """The row behind which a page begins."""

    value: str | int
    key: str | int

    @staticmethod
    def read(cursor: str, sort: Sort, filters: str = "") -> After:
        """Read a ``next_cursor``; a problem if it is not one of this order and these filters
        (``digest_of``). One of the version before has no filters in it."""
        try:
            column, value, key, *more = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
        except (ValueError, TypeError, binascii.Error):
            column, value, key, more = None, None, None, []
        if column == _name(sort) and _fits(value, sort.column) and _fits(key, sort.key):
            if more in ([], [filters]):
                return After(value, key)
            fix = "give the filters of the page before; or leave cursor out to begin again"
            raise invalid("cursor", cursor, "belongs to a list with other filters", fix)
        message = "is not a cursor of this list"
        if isinstance(column, str) and column.removeprefix("-").isidentifier():
            message = f"belongs to another order ({column})"
        fix = "give next_cursor of the page before, with the same sort; or leave it out"
        raise invalid("cursor", cursor, message, fix)

    def write(self, sort: Sort, filters: str = "") -> str:
        """The cursor for the page behind this row."""
        parts = [_name(sort), self.value, self.key, filters]
        return base64.urlsafe_b64encode(orjson.dumps(parts)).decode()


def digest_of(where: Sequence[Where]) -> str:
    """What a list's cursors keep of its filters, to be refused with others; empty for none."""
    if not where:
        return ""
    text = repr(sorted((each.column, each.op.value, repr(each.value)) for each in where))
    found = hashlib.blake2b(text.encode(errors="replace"), digest_size=FILTER_DIGEST_BYTES)
    return found.hexdigest()


def _fits(value: object, column: str) -> TypeGuard[str | int]:
    """True if the column can be compared with this value of a cursor."""
    if column in _NUMBERS:
        return type(value) is int and value in _INT64
    return isinstance(value, str) and "\0" not in value


def _name(sort: Sort) -> str:
    return f"{'-' if sort.descending else ''}{sort.column}"


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a list is wanted."""

    limit: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """Rows and the cursor of the next page; None at the end."""

    rows: Sequence[Any]
    next_cursor: str | None


async def page(tx: Tx, kind: type[R], where: Sequence[Where], sort: Sort, paging: Paging) -> Page:
    """One page of one table."""
    filters = digest_of(where)
    after = After.read(paging.cursor, sort, filters) if paging.cursor else None
    rows: list[Any] = list(await keyset(tx, kind, where, sort, after=after, limit=paging.limit + 1))
    return cut(rows, sort, paging.limit, filters)


def cut(rows: Sequence[Any], sort: Sort, limit: int, filters: str = "") -> Page:
    """The first ``limit`` rows, and whether there are more."""
    if len(rows) <= limit:
        return Page(rows, None)
    last = After(getattr(rows[limit - 1], sort.column), getattr(rows[limit - 1], sort.key))
    return Page(rows[:limit], last.write(sort, filters))


async def keyset(
    tx: Tx, kind: type[R], where: Sequence[Where], sort: Sort, *, after: After | None, limit: int
) -> list[R]:
    """Rows behind ``after`` in this order: first its equals, then the others."""
    value_past = Op.LT if sort.descending else Op.GT
    key_past = Op.LT if sort.key_descending else Op.GT
    order = (Order(sort.column, sort.descending), Order(sort.key, sort.key_descending))
    if sort.column == sort.key:
        more = (Where(sort.key, value_past, after.key),) if after else ()
        return await tx.select(kind, *where, *more, order_by=order[:1], limit=limit)
    if after is None:
        return await tx.select(kind, *where, order_by=order, limit=limit)
    equals = (Where(sort.column, Op.EQ, after.value), Where(sort.key, key_past, after.key))
    rows = await tx.select(kind, *where, *equals, order_by=order, limit=limit)
    if len(rows) < limit:
        others = Where(sort.column, value_past, after.value)
        rows += await tx.select(kind, *where, others, order_by=order, limit=limit - len(rows))
    return rows


async def task(tx: Tx, task_id: str) -> TaskRow | None:
    """A task, projected or at least accepted."""
    row = await tx.get(TaskRow, task_id)
    if row is not None and row.submitted_at is not None:
        return row
    return await tx.get(AcceptedRow, task_id)


async def seen_task(tx: Tx, task_id: str, sight: Sight) -> TaskRow | None:
    """A task that the caller sees. One that the caller does not see costs the reads of one that
    does not exist, and ends like it, even if it cannot be read."""
    try:
        row = await task(tx, task_id)
    except UnreadableRowError:
        this = Where("task_id", Op.EQ, task_id)
        for seen in sight.alternatives():
            for kind in (TaskRow, AcceptedRow):
                await tx.select(kind, this, *seen, limit=1)
        if any(row.id == task_id for row in tx.unreadable):
            raise
        return None
    if row is None or sight.shows(row):
        return row
    await tx.get(AcceptedRow, task_id)
    return None


async def seen_tasks(tx: Tx, task_ids: Sequence[str], sight: Sight) -> list[TaskRow]:
    """Those of these tasks that the caller sees."""
    wanted = Where("task_id", Op.IN, list(task_ids))
    found: list[TaskRow] = []
    for seen in sight.alternatives() if task_ids else ():
        found += await tx.select(TaskRow, wanted, *seen)
    return found


async def task_page(
    tx: Tx, where: Sequence[Where], sort: Sort, paging: Paging, sight: Sight
) -> Page:
    """One page of the tasks that a caller sees: those projected, and those accepted and still on
    their way."""
    filters = digest_of(where)
    after = After.read(paging.cursor, sort, filters) if paging.cursor else None
    known = Where("submitted_at", Op.NOT_NULL)
    rows: list[TaskRow] = []
    accepted: list[AcceptedRow] = []
    for seen in sight.alternatives():
        rows += await keyset(
            tx, TaskRow, [*where, known, *seen], sort, after=after, limit=paging.limit + 1
        )
        accepted += await keyset(
            tx, AcceptedRow, [*where, *seen], sort, after=after, limit=paging.limit + 1
        )
    left_out = {row.id for row in tx.unreadable}
    for row in accepted:
        if row.task_id in left_out:
            continue
        try:
            projected = await tx.get(TaskRow, row.task_id)
        except UnreadableRowError:
            # It is named on the page where it would be.
            continue
        if projected is None or projected.submitted_at is None:
            rows.append(row)
    rows.sort(key=lambda row: getattr(row, sort.key), reverse=sort.key_descending)
    rows.sort(key=lambda row: getattr(row, sort.column), reverse=sort.descending)
    return cut(rows, sort, paging.limit, filters)


async def accept(tx: Tx, rows: Sequence[AcceptedRow]) -> None:
    """Note tasks that submit has stored, unless their events were here already."""
    await tx.load(TaskRow, *((row.task_id,) for row in rows))
    for row in rows:
        projected = await tx.get(TaskRow, row.task_id)
        if projected is None or projected.submitted_at is None:
            tx.put(row)


async def runs(tx: Tx, task_id: str, after_attempt: int, limit: int) -> list[RunRow]:
    """Attempts of a task, oldest first."""
    return await tx.select(
        RunRow,
        Where("task_id", Op.EQ, task_id),
        Where("attempt", Op.GT, after_attempt),
        order_by=(Order("attempt"),),
        limit=limit,
    )


async def run_seconds(tx: Tx, task_ids: Sequence[str]) -> dict[str, float | None]:
    """The run time of each task's ended attempts; None if there are too many attempts."""
    found: dict[str, float | None] = {}
    for first in range(0, len(task_ids), TASKS_SUMMED_MAX):
        ids = list(task_ids[first : first + TASKS_SUMMED_MAX])
        rows = await tx.select(
            RunRow,
            Where("task_id", Op.IN, ids),
            order_by=(Order("task_id"), Order("attempt")),
            limit=RUNS_SUMMED_MAX,
        )
        sums: dict[str, float | None] = dict.fromkeys(ids, 0.0)
        for row in rows:
            if row.started_at is not None and row.exit is not None:
                ran = (row.exit.exited_at - row.started_at).total_seconds()
                sums[row.task_id] = (sums[row.task_id] or 0.0) + max(0.0, ran)
        if len(rows) == RUNS_SUMMED_MAX:
            # What comes after the last row read is not known, nor whether that one was the last.
            sums.update((each, None) for each in ids if each >= rows[-1].task_id)
        found.update(sums)
    return found


async def report(
    tx: Tx,
    task_id: str,
    rank: int,
    *,
    attempt: int,
    samples: Sequence[Sample],
    limits: Limits,
) -> None:
    """Add samples to a rank's history; nothing if all of them came before. What rank 0 reports is
    the task's progress."""
    tail = await tx.get(MetricTailRow, task_id, rank)
    if tail is not None:
        longer = extended(tail, attempt=attempt, samples=samples, limits=limits)
        if longer is not None:
            if longer is not tail:
                tx.put(longer)
                if rank == 0:
                    tx.put(progress(longer))
            return
    before = whole(await tx.get(MetricsRow, task_id, rank), tail)
    row = add(before, task_id=task_id, rank=rank, attempt=attempt, samples=samples, limits=limits)
    if row is not None and row is not before:
        tx.put(row, tail_of(row))
        if rank == 0:
            tx.put(progress(row))


async def progress_of(tx: Tx, task_ids: Sequence[str]) -> dict[str, ProgressRow]:
    """The progress that tasks reported last, by id: one query for a page of tasks."""
    if not task_ids:
        return {}
    rows = await tx.select(ProgressRow, Where("task_id", Op.IN, list(task_ids)))
    return {row.task_id: row for row in rows}


async def metrics(tx: Tx, *where: Where, limit: int) -> list[MetricsRow]:
    """Histories, rank by rank; a condition on task and rank."""
    bodies = await tx.select(MetricsRow, *where, limit=limit)
    if not bodies:
        return []
    last = Where("rank", Op.LE, bodies[-1].rank)
    tails = {row.rank: row for row in await tx.select(MetricTailRow, *where, last)}
    return [whole(body, tails.get(body.rank)) or body for body in bodies]


async def held(tx: Tx, rows_max: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Which tasks hold which GPUs of each node: ``{node: {task: gpu indices}}``."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for row in await tx.select(RunRow, Where("live", Op.EQ, True), limit=rows_max):
        for placed in row.placements:
            by_task = found.setdefault(placed.node_id, {})
            by_task[row.task_id] = (*by_task.get(row.task_id, ()), *placed.gpus)
    return found


async def nodes(tx: Tx) -> list[NodeRow]:
    """Every node of the inventory. It is as long as the cluster is large."""
    return await tx.select(NodeRow, Where("removed", Op.EQ, False))


async def head(tx: Tx) -> EventHeadRow:
    """The positions at which the event log ends (0: empty) and begins."""
    return await tx.get(EventHeadRow, HEAD) or EventHeadRow(HEAD, 0, 1)


async def events(
    tx: Tx,
    *where: Where,
    after: int,
    limit: int,
    until: int | None = None,
    seen: Sequence[Conditions] = EVERYTHING,
) -> list[EventRow]:
    """Events behind a position, in order, that meet every condition and one of the alternatives
    ``seen``, of which no event meets two."""
    bounds = [Where("position", Op.GT, after)]
    if until is not None:
        bounds.append(Where("position", Op.LE, until))
    found: list[EventRow] = []
    for each in seen:
        order = (Order("position"),)
        found += await tx.select(EventRow, *bounds, *where, *each, order_by=order, limit=limit)
    return sorted(found, key=lambda row: row.position)[:limit]


async def token_by_id(tx: Tx, token_id: str) -> TokenRow | None:
    """A token by its public id."""
    found = await tx.select(TokenRow, Where("id", Op.EQ, token_id), limit=1)
    return found[0] if found else None


async def oldest_event_at(tx: Tx, rows_max: int) -> datetime | None:
    """When the oldest kept event was entered; None if there is none but the newest. Times of a
    clock that was ahead are skipped, among so many events."""
    ends = await head(tx)
    if ends.oldest >= ends.position:
        return None
    row = await _readable_event(tx, ends.oldest, ends.position)
    if row is None or row.aged_from <= tx.now:
        return row.aged_from if row is not None else None
    rows = await events(tx, after=ends.oldest, until=ends.position - 1, limit=rows_max)
    return next((row.aged_from for row in rows if row.aged_from <= tx.now), None)


async def drop_old_events(
    tx: Tx, *, kept_max: int, bytes_max: int, rows_max: int, before: datetime | None = None
) -> int:
    """Forget the oldest events beyond so many, beyond so many bytes, and before a time, a bounded
    number at once. The newest one stays."""
    ends = await head(tx)
    latest = min(ends.position, ends.oldest + rows_max)
    oldest = max(ends.oldest, min(ends.position - kept_max + 1, latest))
    # The first event from which on the log is small enough; at the latest ``latest``.
    low, high = oldest, latest
    while low < high:
        middle = (low + high) // 2
        row = await _readable_event(tx, middle, high)
        if row is None or ends.bytes - row.bytes_before <= bytes_max:
            high = middle
        else:
            low = middle + 1
    oldest = max(oldest, low)
    if before is not None:
        begin, end = Where("position", Op.GE, oldest), Where("position", Op.LT, latest)
        for row in await tx.select(EventRow, begin, end, order_by=[Order("position")]):
            if row.aged_from > tx.now:
                # Its time is that of a clock that was ahead: it goes with the next one.
                continue
            if row.aged_from >= before:
                break
            oldest = row.position + 1
    for position in range(ends.oldest, oldest):
        tx.delete(EventRow, position)
    if oldest > ends.oldest:
        tx.put(replace(ends, oldest=oldest))
    return oldest - ends.oldest


async def _readable_event(tx: Tx, first: int, last: int) -> EventRow | None:
    """The event at ``first``; for one that cannot be read, the next one that can, up to ``last``:
    it begins later by what the unreadable ones take. They go by their positions like the others.
    """
    for position in range(first, last + 1):
        with contextlib.suppress(UnreadableRowError):
            return await tx.get(EventRow, position)
    return None


def prune_rules(settings: GatewaySettings) -> tuple[PruneRule, ...]:
    """What the gateway forgets by age: the audit trail, ended tasks with all that belongs to them,
    the usage ledger, removed nodes, and removed quotas."""
    removed = Where("removed", Op.EQ, value=True)
    finished = Where("finished_at", Op.NOT_NULL)
    return (
        aged("audit", timedelta(seconds=settings.audit_keep_seconds), AuditRow, ["id"], "at"),
        *(
            aged(
                f"tokens by {column}",
                timedelta(seconds=settings.tokens_keep_seconds),
                TokenRow,
                ["token_hash"],
                column,
                Where(column, Op.NOT_NULL),
            )
            for column in ("revoked_at", "expires_at")
        ),
        # As long as audit entries: a token that is used gets its row again.
        aged(
            "uses of tokens",
            timedelta(seconds=settings.audit_keep_seconds),
            TokenUseRow,
            ["token_id"],
            "used_at",
        ),
        # Kept a little longer than they are good for, so that a wrong clock is no harm.
        *(
            aged(what, timedelta(days=1), kind, key, column)
            for what, kind, key, column in (
                ("sessions", SessionRow, ["secret_hash"], "expires_at"),
                ("uses of logins", LoginUseRow, ["state_hash"], "used_at"),
                ("login codes", LoginCodeRow, ["code_hash"], "expires_at"),
            )
        ),
        PruneRule(
            "tasks",
            timedelta(seconds=settings.tasks_keep_seconds),
            lambda tx: oldest_of(tx, TaskRow, "finished_at", finished),
            drop_old_tasks,
            lambda tx, newer: nth_newest(tx, TaskRow, "finished_at", newer, finished),
        ),
        aged(
            "usage",
            timedelta(seconds=settings.usage_keep_seconds),
            UsageRow,
            ["task_id", "attempt"],
            "held_until",
            Where("held_until", Op.NOT_NULL),
        ),
        aged(
            "removed nodes",
            timedelta(seconds=settings.removed_node_keep_seconds),
            NodeRow,
            ["node_id"],
            "changed_at",
            removed,
        ),
        aged(
            "removed quotas",
            timedelta(seconds=settings.removed_quota_keep_seconds),
            QuotaRow,
            ["group", "user", "team", "priority", "unit", "grant"],
            "changed_at",
            removed,
        ),
    )


async def drop_old_tasks(tx: Tx, before: datetime, limit: int) -> int:
    """Forget the tasks that ended first: their ranks' metrics, then their runs, then themselves.

    Returns how many rows it dropped, or ``limit`` if some are left. Metrics are large: few go at a
    time. Dying in between leaves tasks without their metrics, and the next prune goes on.
    """
    old = await tx.select(
        TaskRow, Where("finished_at", Op.LT, before), order_by=[Order("finished_at")], limit=limit
    )
    if not old:
        return 0
    mine = Where("task_id", Op.IN, [row.task_id for row in old])
    metrics = await tx.select(MetricsRow, mine, limit=METRICS_DROPPED_MAX)
    for row in metrics:
        tx.delete(MetricsRow, row.task_id, row.rank)
        tx.delete(MetricTailRow, row.task_id, row.rank)
    if len(metrics) == METRICS_DROPPED_MAX:
        return limit
    runs = await tx.select(RunRow, mine, limit=limit)
    for row in runs:
        tx.delete(RunRow, row.task_id, row.attempt)
    if len(runs) == limit:
        return limit
    for row in old:
        tx.delete(ProgressRow, row.task_id)
        tx.delete(TaskRow, row.task_id)
    return len(old)


async def drop_settled(
    tx: Tx, before: datetime, rows_max: int, *, lost_before: datetime | None = None, after: str = ""
) -> str:
    """Forget accepted tasks that were projected long ago (their POST ended after their event), and
    those whose event did not come before ``lost_before``. One whose projection cannot be read
    stays, because its content is unknown.

    It reads the rows behind the task ``after`` and returns the last one that it has read, so that
    rows that stay do not hide others; "" at the end of the table.
    """
    old = await tx.select(
        AcceptedRow,
        Where("task_id", Op.GT, after),
        Where("submitted_at", Op.LT, before),
        order_by=[Order("task_id")],
        limit=rows_max,
    )
    for row in old:
        assert row.submitted_at is not None, "the condition selects rows with a time"
        lost = lost_before is not None and row.submitted_at < lost_before
        with contextlib.suppress(UnreadableRowError):
            if lost or await tx.get(TaskRow, row.task_id) is not None:
                tx.delete(AcceptedRow, row.task_id)
    return old[-1].task_id if len(old) == rows_max else ""
