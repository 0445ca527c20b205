"""Forgetting by age: a loop that deletes old rows in small transactions until none is left.

A service lists what it forgets as ``Old`` in its ``main.py``, which puts ``prune_loop`` among the
service's loops. Nothing depends on how often or how far a prune gets: the next one continues.

What may be forgotten is decided by a clock, and a clock can be wrong. So each ``Horizon`` moves no
faster than ``prune_days_per_hour`` (see ``deletion_limit``); the metric, the log and an alert say
when it is held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from libs.service import observe
from libs.service.deletion_limit import DAY_SECONDS, DeletionLimit
from libs.service.loop import Loop
from libs.service.settings import BaseServiceSettings
from libs.store.port import Op, Order, Store, StoreUnavailableError, Tx, Where


@dataclass(frozen=True, slots=True)
class Old:
    """One kind of rows that are forgotten by age, and how the service's ``store.py`` does it."""

    what: str
    keep: timedelta
    # The moment of the oldest row that may be forgotten; None if there is none.
    oldest: Callable[[Tx], Awaitable[datetime | None]]
    # Deletes rows that are older than a moment, about so many at most; returns how many it dealt
    # with: fewer than the limit means that none is left.
    drop: Callable[[Tx, datetime, int], Awaitable[int]]


async def oldest_of(tx: Tx, kind: type[object], column: str, *where: Where) -> datetime | None:
    """The smallest moment in a column of these rows: one look into the column's index."""
    found = await tx.select(kind, *where, order_by=[Order(column)], limit=1)
    return getattr(found[0], column) if found else None


def aged(
    what: str, keep: timedelta, kind: type[object], key: Sequence[str], column: str, *where: Where
) -> Old:
    """Rows of a table that go one by one, by the moment in one of their columns.

    ``key`` names the columns of the primary key; ``where`` which rows grow old at all.
    """

    async def drop(tx: Tx, before: datetime, limit: int) -> int:
        past = Where(column, Op.LT, before)
        rows = await tx.select(kind, *where, past, order_by=[Order(column)], limit=limit)
        for row in rows:
            tx.delete(kind, *(getattr(row, name) for name in key))
        return len(rows)

    return Old(what, keep, lambda tx: oldest_of(tx, kind, column, *where), drop)


class Horizon:
    """Before which moment rows of one kind may be deleted: a ``DeletionLimit`` with its metric, its
    log line and moments instead of seconds."""

    def __init__(self, service: str, what: str, days_per_hour: float) -> None:
        self._service, self._what = service, what
        self._limit = DeletionLimit(days_per_hour)
        self._held = False

    def before(self, oldest: datetime | None, wanted: datetime) -> datetime | None:
        """The moment before which rows may be deleted now, at most ``wanted``; None: there is
        nothing to delete. ``oldest``: the moment of the oldest row, None if there is no row."""
        # Counted from ``wanted``: exact to the microsecond wherever nothing is held back.
        end = wanted.timestamp()
        begin = None if oldest is None else end - (wanted - oldest).total_seconds()
        limit = self._limit.before(begin, end, asyncio.get_running_loop().time())
        self._report()
        if oldest is None or oldest >= wanted:
            return None
        return wanted - timedelta(seconds=end - limit)

    def _report(self) -> None:
        """Say once that more than a day is held back, and how much in a metric."""
        seconds = self._limit.held_seconds
        observe.PRUNE_HELD.labels(self._service, self._what).set(seconds)
        if seconds > DAY_SECONDS and not self._held:
            observe.log(self._service).warning(
                "old rows are deleted slowly: check this machine's clock, unless the time that"
                " rows are kept was shortened or much had gathered",
                what=self._what,
                held_back_seconds=round(seconds),
                days_per_hour=self._limit.days_per_hour,
            )
        self._held = seconds > DAY_SECONDS


@dataclass
class Pruning:
    """One leader's forgetting."""

    service: str
    store: Store
    settings: BaseServiceSettings
    old: Sequence[Old]
    _horizons: dict[str, Horizon] = field(default_factory=dict[str, Horizon])

    async def step(self, epoch: int) -> float | None:
        """Delete one bounded piece of each kind, each in a transaction of its own; again at once
        while there is more."""
        more = False
        for each in self.old:
            try:
                more |= await self._piece(each, epoch)
            except StoreUnavailableError as problem:
                # Also a statement that took too long. The other kinds get their turn.
                failed(self.service, each.what, problem)
        return 0.0 if more else None

    async def _piece(self, old: Old, epoch: int) -> bool:
        horizon = self._horizons.get(old.what) or Horizon(
            self.service, old.what, self.settings.prune_days_per_hour
        )
        self._horizons[old.what] = horizon
        limit = self.settings.prune_rows_max
        async with self.store.transaction(epoch=epoch) as tx:
            oldest, wanted = await old.oldest(tx), tx.now - old.keep
            before = horizon.before(oldest, wanted)
            if before is None:
                return False
            count = await old.drop(tx, before, limit)
        pruned(self.service, old.what, count)
        return count >= limit


def will_prune(service: str, what: str) -> None:
    """Rows of this kind will be deleted: the metric of failures begins at 0, so that alerts see
    the first one as an increase."""
    observe.PRUNE_FAILED.labels(service, what)


def pruned(service: str, what: str, count: int) -> None:
    """Count rows that were deleted because of their age, and say so."""
    if count:
        observe.PRUNED.labels(service, what).inc(count)
        observe.log(service).info("old rows deleted", what=what, rows=count)


def failed(service: str, what: str, problem: Exception) -> None:
    """Count and say that old rows could not be deleted; they are tried again at the next tick."""
    observe.PRUNE_FAILED.labels(service, what).inc()
    observe.log(service).warning("old rows cannot be deleted", what=what, problem=str(problem))


def prune_loop(service: str, store: Store, settings: BaseServiceSettings, *old: Old) -> Loop:
    """The loop that forgets. It takes turns with the handlers: no commit falls into a step."""
    pruning = Pruning(service, store, settings, old)
    for each in old:
        will_prune(service, each.what)
    return Loop(
        "prune",
        pruning.step,
        tick_seconds=settings.prune_tick_seconds,
        exclusive=True,
        wake_on_commit=False,
    )
