"""What the two adapters share: the leader's fencing, resident tables, events that were just
emitted.

``sql`` and ``memory`` inherit from ``StoreCore``, so that the simulation runs the code of
production down to this line.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope, within_bytes
from libs.store.port import (
    ConflictError,
    Leadership,
    NotLeaderError,
    Observer,
    ObserverError,
    StoreUnavailableError,
    Tx,
    UnreadableRow,
)
from libs.store.recent import Recent
from libs.store.rows import Key, Row, Shape
from libs.store.tables import Tables
from libs.store.unit import Birth, Clock, Known, Landed, Session, Unit

R = TypeVar("R")
# More than these wait in the database alone.
FRESH_EVENTS_MAX = 8192
FRESH_BYTES_MAX = 4 * BATCH_BYTES_MAX
# A resident table is loaded in statements of so many rows: each has the time of a statement.
RESIDENT_PAGE_ROWS = 10_000


class _Term:
    """A leadership, which also ends when this process's memory does not follow the rows."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._failed = asyncio.Event()
        self.failure: ObserverError | None = None

    @property
    def epoch(self) -> int:
        """Grows with each leader."""
        return self._leadership.epoch

    def fail(self, failure: ObserverError) -> None:
        """The first failure ends the term."""
        self.failure = self.failure or failure
        self._failed.set()

    async def lost(self) -> None:
        """Returns when the leadership is gone; raises the failure that ends the term."""
        gone = asyncio.ensure_future(self._leadership.lost())
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait((gone, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (gone, failed):
                each.cancel()
            await asyncio.gather(gone, failed, return_exceptions=True)
        if self.failure is not None:
            raise self.failure
        gone.result()

    async def release(self) -> None:
        """Give it up at once."""
        await self._leadership.release()


class StoreCore(ABC):
    """The half of ``Store`` that does not depend on the database."""

    def __init__(
        self,
        tables: Tables,
        *,
        clock: Clock,
        source: str,
        new_id: Callable[[], str],
        traceparent: Callable[[], str] = str,
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._birth = Birth(source, new_id, traceparent)
        self._observers: list[Observer] = []
        self._residents: dict[Shape, dict[Key, Row]] = {}
        # Rows of resident tables that could not be decoded, by their encoded keys.
        self._unreadable: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = {}
        self._report_unreadable: Callable[[UnreadableRow], None] = lambda _row: None
        self._recent = Recent(each for each in tables.shapes.values() if each.recent)
        self._outbox_changed = asyncio.Event()
        # Events of our own commits that are not published yet, by their rows in the outbox; kept
        # from the first query on. Others, and those whose commit is in doubt, are found by a query.
        self._fresh: dict[int, Envelope] = {}
        self._fresh_bytes = 0
        self._relays = False
        self._query_due = False
        # Serializes the leader's transactions: they are applied to memory in the order of the
        # commits.
        self._turn = asyncio.Lock()
        self._turn_of: asyncio.Task[Any] | None = None
        # A leader's transaction whose commit was not answered.
        self._doubt: Landed | None = None
        self._term: _Term | None = None

    @abstractmethod
    async def _begin(self, epoch: int | None) -> Session:
        """Open a transaction; with an epoch, fenced by it (NotLeaderError)."""
        ...

    @abstractmethod
    async def _lead(self) -> Leadership:
        """Wait for the leadership."""
        ...

    @abstractmethod
    async def _query_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        """Unpublished events, oldest first, from the database."""
        ...

    @abstractmethod
    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published, in the database."""
        ...

    @abstractmethod
    async def _mark_refused(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as refused, in the database."""
        ...

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:
        """Unpublished events, oldest first; see the port."""
        if not query and self._relays and not self._query_due:
            fresh = islice(self._fresh.items(), limit)
            return list(within_bytes(fresh, lambda row: row[1].body()))
        # Set before the query: what commits meanwhile is found, kept, or both.
        self._relays, self._query_due = True, False
        try:
            return await self._query_outgoing(limit)
        except BaseException:
            self._query_due = True
            raise

    async def published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published."""
        await self._mark_published(row_ids)
        self._drop_fresh(row_ids)

    async def refuse(self, row_ids: Sequence[int]) -> None:
        """Note that the bus refuses these events; see the port."""
        await self._mark_refused(row_ids)
        self._drop_fresh(row_ids)

    def _drop_fresh(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            envelope = self._fresh.pop(row_id, None)
            if envelope is not None:
                self._fresh_bytes -= len(envelope.body())

    def _keep_fresh(self, landed: Landed, row_ids: Sequence[int]) -> None:
        """Remember what was just put in the outbox, while there is space."""
        if not self._relays:
            return
        unknown = len(row_ids) != len(landed.emitted)
        too_many = len(self._fresh) > FRESH_EVENTS_MAX or self._fresh_bytes > FRESH_BYTES_MAX
        if unknown or too_many:
            self._forget_fresh()
        else:
            self._fresh |= zip(row_ids, landed.emitted, strict=True)
            self._fresh_bytes += sum(len(each.body()) for each in landed.emitted)

    def _forget_fresh(self) -> None:
        self._fresh.clear()
        self._fresh_bytes = 0
        self._query_due = True

    @property
    def in_doubt(self) -> bool:
        """True until the next leader's transaction after a commit without an answer."""
        return self._doubt is not None

    @property
    def outbox_changed(self) -> asyncio.Event:
        """Set after a commit that emitted something."""
        return self._outbox_changed

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after each of this store's commits, in order."""
        self._observers.append(observer)

    @asynccontextmanager
    async def transaction(self, *, epoch: int | None = None) -> AsyncGenerator[Tx]:
        """Open a transaction; see the port."""
        if epoch is not None and self._turn_of is asyncio.current_task():
            raise RuntimeError("a leader's transaction inside a leader's transaction")
        async with self._turn if epoch is not None else nullcontext():
            if epoch is not None:
                self._turn_of = asyncio.current_task()
            try:
                async with self._open(epoch) as unit:
                    yield unit
            finally:
                if epoch is not None:
                    self._turn_of = None

    @asynccontextmanager
    async def _open(self, epoch: int | None) -> AsyncGenerator[Unit]:
        now = self._clock.now()
        if epoch is not None and self._term is not None and self._term.failure is not None:
            # Whatever would be written now may be decided on a memory that is wrong.
            raise self._term.failure
        session = await self._begin(epoch)
        try:
            self._settle(session.version)
            known = Known(self._report_unreadable)
            if epoch is not None:
                report = self._report_unreadable
                known = Known(report, self._residents, self._recent, self._unreadable)
            unit = Unit(session, self._tables, known, self._birth, now)
            yield unit
            landed = await unit.finish()
        except BaseException:
            await session.rollback()
            raise
        if landed is None:
            # Nothing to keep: no commit, no version, no wait for the disk.
            await session.rollback()
            return
        try:
            await session.commit()
        except (ConflictError, NotLeaderError):
            raise
        except BaseException:
            # Dying here, or an answer that is lost: the rows may be there or not.
            if epoch is not None:
                self._doubt = landed
            # It may have landed, and then its events wait.
            self._query_due = True
            raise
        self._land(landed, session.outbox_ids)

    def _settle(self, version: int) -> None:
        """Find out what became of a commit without an answer: each commit counts one version.

        If it did land, this transaction is refused, so that its caller starts again from the
        state that is true now.
        """
        doubt = self._doubt
        if doubt is None or version == 0:
            return
        self._doubt = None
        if version > doubt.version:
            self._land(doubt, ())
            raise StoreUnavailableError("an earlier transaction did commit; begin again after it")

    def _land(self, landed: Landed, row_ids: Sequence[int]) -> None:
        """Apply a committed transaction to memory and call the observers, every one of them.

        ObserverError if one failed: its state may differ from the rows, so the commit must not
                count as followed.
        """
        steps: list[Callable[[], None]] = [lambda: self._follow(landed, row_ids)]
        if self._observers and landed.writes:
            delta = landed.delta()
            steps += [partial(observer, delta) for observer in self._observers]
        failures: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - whatever it is, its memory is in doubt
                failures.append(error)
        if failures:
            first = failures[0]
            failure = ObserverError(
                f"memory cannot follow a commit: {type(first).__name__}: {first}"
            )
            failure.__cause__ = first
            if self._term is not None:
                self._term.fail(failure)
            raise failure

    def _follow(self, landed: Landed, row_ids: Sequence[int]) -> None:
        """Apply a committed transaction to what the store itself keeps in memory."""
        if landed.version:
            self._recent.land(landed.writes)
        for shape, rows in landed.writes.items():
            table = self._residents.get(shape)
            if table is None:
                continue
            lost = self._unreadable.get(shape)
            for key, row in rows.items():
                if lost:
                    lost.pop(shape.encoded_key(key), None)
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        if landed.emitted:
            self._keep_fresh(landed, row_ids)
            self._outbox_changed.set()

    async def lead(self) -> Leadership:
        """Wait until this process leads the service; resident tables have to be loaded again."""
        leadership = self._term = _Term(await self._lead())
        self._residents, self._unreadable = {}, {}
        self._recent.clear()
        self._doubt = None
        self._forget_fresh()
        return leadership

    async def make_resident(self, *kinds: type[object]) -> None:
        """Load these tables into memory (leader only: it alone writes them)."""
        async with self._turn:
            loaded: dict[Shape, dict[Key, Row]] = {}
            lost: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = {}
            session = await self._begin(None)
            try:
                for kind in kinds:
                    shape = self._tables.shape(kind)
                    loaded[shape], bad = await _whole(session, shape)
                    lost[shape] = {row.key: row for row in bad}
            finally:
                await session.rollback()
            self._residents = self._residents | loaded
            self._unreadable = self._unreadable | lost
        for rows in lost.values():
            for row in rows.values():
                self._report_unreadable(row)

    def unreadable(self, kind: type[object]) -> Sequence[UnreadableRow]:
        """The rows of a resident table that could not be decoded."""
        return tuple(self._unreadable.get(self._tables.shape(kind), {}).values())

    def on_unreadable(self, report: Callable[[UnreadableRow], None]) -> None:
        """Call ``report`` for each unreadable row that is met."""
        self._report_unreadable = report

    def resident(self, kind: type[R]) -> dict[object, R]:
        """The rows of a resident table by primary key; KeyError if it was not loaded."""
        shape = self._tables.shape(kind)
        if shape not in self._residents:
            raise KeyError(f"{kind.__name__} is not resident; make_resident() comes first")
        return cast("dict[object, R]", self._residents[shape])


async def _whole(session: Session, shape: Shape) -> tuple[dict[Key, Row], list[UnreadableRow]]:
    """All rows of a table by their keys, as the transaction sees them; and those that cannot be
    decoded."""
    found: dict[Key, Row] = {}
    lost: list[UnreadableRow] = []
    after: Sequence[object] | None = None
    while True:
        rows = await session.page(shape, after, RESIDENT_PAGE_ROWS)
        lost += (row for row in rows if type(row) is UnreadableRow)
        found.update((shape.key_of(row), row) for row in rows if type(row) is not UnreadableRow)
        if len(rows) < RESIDENT_PAGE_ROWS:
            return found, lost
        last = rows[-1]
        after = last.key if type(last) is UnreadableRow else shape.encoded_key(shape.key_of(last))
