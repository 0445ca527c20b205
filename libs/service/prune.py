"""Forgetting by age: a loop that deletes old rows in small transactions until none is left.

A service lists what it forgets as ``Old`` in its ``main.py``, which puts ``prune_loop`` among the
service's loops. Nothing depends on how often or how far a prune gets: the next one continues.

What may be forgotten is decided by a clock, and a clock can be wrong. So each ``Horizon`` moves no
faster than ``prune_days_per_hour``: a clock that jumps a year forward costs a day of history in the
first hour, and the metric, the log and an alert say so while there is time to mend it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from libs.service import observe
from libs.service.loop import Loop
from libs.service.settings import BaseServiceSettings
from libs.store.port import Order, Store, StoreUnavailableError, Tx, Where

DAY = timedelta(days=1)


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


@dataclass(slots=True)
class Horizon:
    """Before which moment rows of one kind may be deleted. It moves at a bounded speed.

    It lives in memory. A new leader begins at the oldest row and without a budget, so a process
    that restarts again and again deletes nothing.
    """

    service: str
    what: str
    # 0: no bound.
    days_per_hour: float
    _at: datetime | None = None
    _spare: timedelta = timedelta()
    _counted_s: float | None = None
    _held: bool = False

    def before(self, oldest: datetime, wanted: datetime) -> datetime:
        """The moment up to which rows may be deleted now, at most ``wanted``."""
        if self.days_per_hour == 0:
            return wanted
        now_s = asyncio.get_running_loop().time()
        if self._counted_s is not None:
            speed = self.days_per_hour * 24
            earned = timedelta(seconds=(now_s - self._counted_s) * speed)
            # What an hour earns is kept, no more: a year without old rows earns no year.
            self._spare = min(self._spare + earned, DAY * max(1.0, self.days_per_hour))
        self._counted_s = now_s
        # A time without rows costs no more than a day.
        at = oldest if self._at is None else max(self._at, oldest - DAY)
        step = max(timedelta(), min(wanted - at, self._spare))
        self._spare -= step
        self._at = at + step
        self._say(wanted - self._at)
        return min(self._at, wanted)

    def _say(self, held: timedelta) -> None:
        """Say once that more than a day is held back, and how much in a metric."""
        seconds = max(0.0, held.total_seconds())
        observe.PRUNE_HELD.labels(self.service, self.what).set(seconds)
        if held > DAY and not self._held:
            observe.log(self.service).warning(
                "old rows are deleted slowly: check this machine's clock, unless the time that"
                " rows are kept was shortened or much had gathered",
                what=self.what,
                held_back_seconds=round(seconds),
                days_per_hour=self.days_per_hour,
            )
        self._held = held > DAY

    def nothing(self) -> None:
        """There is no row that could be too old."""
        observe.PRUNE_HELD.labels(self.service, self.what).set(0)
        self._held = False


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
            if oldest is None or oldest >= wanted:
                horizon.nothing()
                return False
            count = await old.drop(tx, horizon.before(oldest, wanted), limit)
        pruned(self.service, old.what, count)
        return count >= limit


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
    return Loop(
        "prune",
        pruning.step,
        tick_seconds=settings.prune_tick_seconds,
        exclusive=True,
        wake_on_commit=False,
    )
