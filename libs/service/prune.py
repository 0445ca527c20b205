"""Deletes rows by age and number, in small transactions until no old row is left.

A service defines ``PruneRule``s in its ``store.py``; its ``main.py`` puts ``prune_loop`` among its
loops. Nothing depends on how often or how far a prune gets: the next one continues.

Age is measured with a clock that can be wrong. So each ``PruneCutoff`` moves no faster than
``prune_days_per_hour`` (see ``deletion_limit``); a metric, the log and an alert show when it is
held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from libs.service import observability
from libs.service.deletion_limit import DAY_SECONDS, DeletionLimit
from libs.service.loop import Loop
from libs.service.settings import BaseServiceSettings
from libs.store.port import Op, Order, Store, StoreUnavailableError, Tx, Where

# Rows that one statement counts.
COUNTED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class PruneRule:
    """How long rows of one kind are kept, and how the service's ``store.py`` deletes them."""

    what: str
    keep: timedelta
    # Returns the time of the oldest row that may be deleted; None if there is none.
    oldest: Callable[[Tx], Awaitable[datetime | None]]
    # Deletes rows before a cutoff, about as many as the limit at most; returns how many it
    # processed: fewer than the limit means that none is left.
    drop: Callable[[Tx, datetime, int], Awaitable[int]]
    # Returns the time of the row behind so many newer ones; None if there are not so many. Without
    # it age alone bounds the rows.
    nth: Callable[[Tx, int], Awaitable[datetime | None]] | None = None


async def oldest_of(tx: Tx, kind: type[object], column: str, *where: Where) -> datetime | None:
    """Return the earliest time in a column of these rows: one lookup in the column's index."""
    found = await tx.select(kind, *where, order_by=[Order(column)], limit=1)
    return getattr(found[0], column) if found else None


async def nth_newest(
    tx: Tx, kind: type[object], column: str, newer: int, *where: Where
) -> datetime | None:
    """Return the time of the row behind ``newer`` newer ones; None if there are not so many. It
    reads as many entries of the column's index, so it is not for every tick. Each statement counts
    so many that it ends in time; of rows of one moment between two statements some are not counted.
    """
    below: list[Where] = []
    while True:
        step = min(newer, COUNTED_MAX)
        order = [Order(column, descending=True)]
        found = await tx.select(kind, *where, *below, order_by=order, limit=1, offset=step)
        if not found or step == newer:
            return getattr(found[0], column) if found else None
        newer -= step + 1
        below = [Where(column, Op.LT, getattr(found[0], column))]


def aged(
    what: str, keep: timedelta, kind: type[object], key: Sequence[str], column: str, *where: Where
) -> PruneRule:
    """Return a rule for rows that are deleted individually, by the time in one column.

    ``key`` names the columns of the primary key; ``where`` selects the rows that grow old at all.
    """

    async def drop(tx: Tx, before: datetime, limit: int) -> int:
        past = Where(column, Op.LT, before)
        rows = await tx.select(kind, *where, past, order_by=[Order(column)], limit=limit)
        for row in rows:
            tx.delete(kind, *(getattr(row, name) for name in key))
        return len(rows)

    return PruneRule(
        what,
        keep,
        lambda tx: oldest_of(tx, kind, column, *where),
        drop,
        lambda tx, newer: nth_newest(tx, kind, column, newer, *where),
    )


class NumberCutoff:
    """The time before which rows are deleted because there are more than ``rows_max``.

    Rows are counted at most once in ``count_seconds``; what comes in between is too much for that
    long. Rows of one moment stay or go together. No clock decides it, so nothing slows it down.
    """

    def __init__(self, rows_max: int, count_seconds: float) -> None:
        self._rows_max = rows_max
        self._count_seconds = count_seconds
        self._counted_at = -inf
        self._before: datetime | None = None

    @property
    def before(self) -> datetime | None:
        """The cutoff of the last count; None: there were not too many."""
        return self._before

    async def count(
        self, store: Store, nth: Callable[[Tx, int], Awaitable[datetime | None]]
    ) -> None:
        """Count the rows, if it is time for it. It takes seconds where there are millions of them,
        so nothing else may wait for it."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= self._count_seconds:
            # First, so that a count that takes too long is not repeated at each tick.
            self._counted_at = now
            async with store.transaction() as tx:
                self._before = await nth(tx, self._rows_max - 1)


class PruneCutoff:
    """The time before which rows of one kind may be deleted: a ``DeletionLimit`` with a metric, a
    log line and datetimes instead of seconds."""

    def __init__(self, service: str, what: str, days_per_hour: float) -> None:
        self._service, self._what = service, what
        self._limit = DeletionLimit(days_per_hour)
        self._held = False

    def before(self, oldest: datetime | None, wanted: datetime) -> datetime | None:
        """Return the cutoff before which rows may be deleted now, at most ``wanted``; None: there
        is nothing to delete. ``oldest``: the time of the oldest row, None if there is no row."""
        # Counted from ``wanted``: exact to the microsecond wherever nothing is held back.
        end = wanted.timestamp()
        begin = None if oldest is None else end - (wanted - oldest).total_seconds()
        limit = self._limit.before(begin, end, asyncio.get_running_loop().time())
        self._report()
        if oldest is None or oldest >= wanted:
            return None
        return wanted - timedelta(seconds=end - limit)

    def _report(self) -> None:
        """Log once that more than a day is held back; set the metric."""
        seconds = self._limit.held_seconds
        observability.PRUNE_HELD.labels(self._service, self._what).set(seconds)
        if seconds > DAY_SECONDS and not self._held:
            observability.log(self._service).warning(
                "old rows are deleted slowly: check this machine's clock, unless the time that"
                " rows are kept was shortened or much had gathered",
                what=self._what,
                held_back_seconds=round(seconds),
                days_per_hour=self._limit.days_per_hour,
            )
        self._held = seconds > DAY_SECONDS


@dataclass
class Pruning:
    """Deletes one service's old rows on its leader."""

    service: str
    store: Store
    settings: BaseServiceSettings
    old: Sequence[PruneRule]
    _cutoffs: dict[str, PruneCutoff] = field(default_factory=dict[str, PruneCutoff])
    _numbers: dict[str, NumberCutoff] = field(default_factory=dict[str, NumberCutoff])

    async def prepare(self) -> None:
        """Count the rows of each kind, before the step takes its turn."""
        for each in self.old:
            if each.nth is not None:
                try:
                    await self._number(each.what).count(self.store, each.nth)
                except StoreUnavailableError as problem:
                    failed(self.service, each.what, problem)

    def _number(self, what: str) -> NumberCutoff:
        return self._numbers.setdefault(what, number_cutoff(self.settings))

    async def step(self, epoch: int) -> float | None:
        """Delete one bounded batch of each kind in its own transaction; run again at once while
        there is more."""
        more = False
        for each in self.old:
            try:
                more |= await self._piece(each, epoch)
            except StoreUnavailableError as problem:
                # Also a statement that took too long. The other kinds are still pruned.
                failed(self.service, each.what, problem)
        return 0.0 if more else None

    async def _piece(self, old: PruneRule, epoch: int) -> bool:
        cutoff = self._cutoffs.get(old.what) or PruneCutoff(
            self.service, old.what, self.settings.prune_days_per_hour
        )
        self._cutoffs[old.what] = cutoff
        limit = self.settings.prune_rows_max
        async with self.store.transaction(epoch=epoch) as tx:
            oldest, wanted = await old.oldest(tx), tx.now - old.keep
            cutoffs = [cutoff.before(oldest, wanted)]
            if old.nth is not None and oldest is not None:
                by_number = self._number(old.what).before
                # Not what ends in the future: a token that is still good.
                cutoffs.append(by_number and min(by_number, tx.now))
            before = max((each for each in cutoffs if each is not None), default=None)
            if before is None or oldest is None or oldest >= before:
                return False
            count = await old.drop(tx, before, limit)
        pruned(self.service, old.what, count)
        return count >= limit


def number_cutoff(settings: BaseServiceSettings) -> NumberCutoff:
    """Return the bound by number that the settings give."""
    return NumberCutoff(settings.kept_rows_max, settings.prune_count_seconds)


def will_prune(service: str, what: str) -> None:
    """Start the metric of failures at 0, so that alerts see the first failure as an increase."""
    observability.PRUNE_FAILED.labels(service, what)


def pruned(service: str, what: str, count: int) -> None:
    """Count and log rows that were deleted because of their age."""
    if count:
        observability.PRUNED.labels(service, what).inc(count)
        observability.log(service).info("old rows deleted", what=what, rows=count)


def failed(service: str, what: str, problem: Exception) -> None:
    """Count and log that old rows could not be deleted; the next tick tries again."""
    observability.PRUNE_FAILED.labels(service, what).inc()
    observability.log(service).warning(
        "old rows cannot be deleted", what=what, problem=str(problem)
    )


def prune_loop(service: str, store: Store, settings: BaseServiceSettings, *old: PruneRule) -> Loop:
    """Return the loop that prunes. It takes turns with the handlers: no commit falls into a
    step."""
    pruning = Pruning(service, store, settings, old)
    for each in old:
        will_prune(service, each.what)
    return Loop(
        "prune",
        pruning.step,
        prepare=pruning.prepare,
        tick_seconds=settings.prune_tick_seconds,
        exclusive=True,
        wake_on_commit=False,
    )
