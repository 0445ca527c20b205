"""``Store``: what a service may do with its schema, and all of it that needs no database.

``sql`` and ``memory`` inherit from it, so that the simulation runs the code of
production down to this line.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope, within_bytes
from libs.store.recent import Recent
from libs.store.rows import Key, Row, Shape
from libs.store.tables import Tables
from libs.store.terms import (
    ConflictError,
    Leadership,
    NotLeaderError,
    Observer,
    ObserverError,
    RefusedEvent,
    StoreUnavailableError,
    UnreadableRow,
)
from libs.store.unit import Birth, Clock, Known, Landed, Session, Tx

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
        self.epoch = leadership.epoch
        self.release = leadership.release
        self.failure: ObserverError | None = None

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


class Store(ABC):
    """One service's schema under that service's own role."""

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
        self._known = Known(recent=Recent(each for each in tables.shapes.values() if each.recent))
        # Set after a commit that emitted something; the relay clears it and waits on it.
        self.outbox_changed = asyncio.Event()
        # Events of our own commits that are not published yet, by their rows in the outbox; kept
        # from the first query on. Others, and those whose commit is in doubt, are found by a query.
        self._fresh: dict[int, Envelope] = {}
        self._fresh_bytes = 0
        self._relays = False
        self._query_due = False
        # Leader's transactions take turns here: they land in memory in the order of the commits.
        self._turn = asyncio.Lock()
        self._turn_of: asyncio.Task[Any] | None = None
        # A leader's transaction whose commit was not answered.
        self._doubt: Landed | None = None
        self._term: _Term | None = None

    @abstractmethod
    async def _begin(self, epoch: int | None) -> Session:
        """Open a transaction; with an epoch, fenced by it (NotLeaderError)."""

    @abstractmethod
    async def _lead(self) -> Leadership:
        """Wait for the leadership."""

    @abstractmethod
    async def _query_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        """Unpublished events, oldest first, from the database."""

    @abstractmethod
    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published, in the database."""

    @abstractmethod
    async def _mark_refused(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as refused, in the database."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the database is out of reach, as far as leading or standing by shows it."""

    @abstractmethod
    async def refused(self, after: int, limit: int) -> list[RefusedEvent]:
        """Refused events with ids behind ``after``, in the order of their ids: at most ``limit``,
        and no more once they have reached ``BATCH_BYTES_MAX``."""

    @abstractmethod
    async def count_refused(self) -> int:
        """How many events are refused."""

    @abstractmethod
    async def meet_bus_server(self, server_id: str, periods: int) -> int:
        """Note which bus server the outbox is published to. If it is not the one noted before,
        the events of the current period and of so many before it are made unpublished again,
        because the old server may have died before its disk had them; returns how many. Costs
        nothing while the server is the one this process has noted last."""

    @abstractmethod
    async def next_period(self) -> None:
        """Begin the next period of the outbox. Events belong to the period in which they were
        published; periods are numbered, so no clock decides what is published again or dropped."""

    @abstractmethod
    async def prune_outbox(self, periods: int) -> int:
        """Drop published events that are older than the current period and so many before it;
        returns how many."""

    @abstractmethod
    async def oldest_seen(self) -> datetime | None:
        """When the event was entered that is in the inbox for the longest time."""

    @abstractmethod
    async def prune_inbox(self, before: datetime) -> int:
        """Drop the inbox's entries from before a moment; returns how many."""

    @abstractmethod
    async def close(self) -> None:
        """Give up the leadership and close the connections."""

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:
        """Unpublished events of the outbox with their row ids, oldest first: at most ``limit``, and
        no more once they have reached ``BATCH_BYTES_MAX`` (``is_full``). Without ``query`` those
        that this process has committed since its first query, from memory: what
        others committed, or what nobody knows the outcome of, shows at the next query. Refused ones
        are left out, and one that cannot be read becomes a refused one."""
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
        """Mark events of the outbox as published; they are not refused any more."""
        await self._mark_published(row_ids)
        self._drop_fresh(row_ids)

    async def refuse(self, row_ids: Sequence[int]) -> None:
        """Note that the bus refuses these events: ``outgoing`` leaves them out from now on."""
        await self._mark_refused(row_ids)
        self._drop_fresh(row_ids)

    def _drop_fresh(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            envelope = self._fresh.pop(row_id, None)
            if envelope is not None:
                self._fresh_bytes -= len(envelope.body())

    def _keep_fresh(self, landed: Landed, row_ids: Sequence[int]) -> None:
        """Remember what was just put in the outbox, while there is room."""
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
        """True while the outcome of a leader's commit is not known, because its answer was lost.
        The next leader's transaction finds out: if the commit did take effect, the observers hear
        of it then, and that transaction raises StoreUnavailableError."""
        return self._doubt is not None

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after each of this store's commits, with what changed, in order. If it
        raises, the transaction raises ObserverError and the leader's term is over."""
        self._observers.append(observer)

    @asynccontextmanager
    async def transaction(self, *, epoch: int | None = None) -> AsyncGenerator[Tx]:
        """Open a transaction; commits on leaving, rolls back on an exception. With an epoch it
        is a leader's: NotLeaderError if another leads. Raises ConflictError, DatabaseFaultError and
        StoreUnavailableError; a unique conflict may only show on leaving. ObserverError if an
        observer failed, in this transaction (which is committed) or before in this term."""
        if epoch is not None and self._turn_of is asyncio.current_task():
            raise RuntimeError("a leader's transaction inside a leader's transaction")
        async with self._turn if epoch is not None else nullcontext():
            if epoch is not None:
                self._turn_of = asyncio.current_task()
            try:
                async with self._open(epoch) as tx:
                    yield tx
            finally:
                if epoch is not None:
                    self._turn_of = None

    @asynccontextmanager
    async def _open(self, epoch: int | None) -> AsyncGenerator[Tx]:
        now = self._clock.now()
        if epoch is not None and self._term is not None and self._term.failure is not None:
            # Whatever would be written now may be decided on a memory that is wrong.
            raise self._term.failure
        session = await self._begin(epoch)
        try:
            self._settle(session.version)
            known = Known(self._known.report) if epoch is None else self._known
            tx = Tx(session, self._tables, known, self._birth, now)
            yield tx
            landed = await tx.finish()
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

        ObserverError if one failed: what it keeps may not be what the rows say, and nobody may
        take the commit for one that was followed.
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
            self._known.recent.land(landed.writes)
        for shape, rows in landed.writes.items():
            table = self._known.residents.get(shape)
            if table is None:
                continue
            lost = self._known.unreadable.get(shape)
            for key, row in rows.items():
                if lost:
                    lost.pop(shape.encoded_key(key), None)
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        if landed.emitted:
            self._keep_fresh(landed, row_ids)
            self.outbox_changed.set()

    async def lead(self) -> Leadership:
        """Wait until this process leads the service (one at a time), with a higher epoch. Resident
        tables have to be loaded again."""
        leadership = self._term = _Term(await self._lead())
        self._known.residents, self._known.unreadable = {}, {}
        self._known.recent.clear()
        self._doubt = None
        self._forget_fresh()
        return leadership

    async def make_resident(self, *kinds: type[object]) -> None:
        """Load these tables into memory (leader only: it alone writes them). From then on reads
        of them inside leader's transactions are served from memory. Rows that cannot be decoded
        are reported and left out: see ``unreadable``."""
        shapes = [self._tables.shape(kind) for kind in kinds]
        loaded: dict[Shape, dict[Key, Row]] = {shape: {} for shape in shapes}
        lost: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = {shape: {} for shape in shapes}
        async with self._turn:
            session = await self._begin(None)
            try:
                for shape in shapes:
                    async for page in session.pages(shape, RESIDENT_PAGE_ROWS):
                        for row in page:
                            if type(row) is UnreadableRow:
                                lost[shape][row.key] = row
                            else:
                                loaded[shape][shape.key_of(row)] = row
            finally:
                await session.rollback()
            self._known.residents = self._known.residents | loaded
            self._known.unreadable = self._known.unreadable | lost
        for rows in lost.values():
            for row in rows.values():
                self._known.report(row)

    def unreadable(self, kind: type[object]) -> Sequence[UnreadableRow]:
        """The rows of a resident table that could not be decoded and were not written since.
        ``get`` raises UnreadableRowError for them; what concerns them must be left alone."""
        return tuple(self._known.unreadable.get(self._tables.shape(kind), {}).values())

    def on_unreadable(self, report: Callable[[UnreadableRow], None]) -> None:
        """Call ``report`` for each unreadable row that is met, each time."""
        self._known.report = report

    def resident(self, kind: type[R]) -> dict[object, R]:
        """The rows of a resident table by primary key (a tuple if it has several columns).
        KeyError if it was not loaded. Never change it; it is the table."""
        shape = self._tables.shape(kind)
        if shape not in self._known.residents:
            raise KeyError(f"{kind.__name__} is not resident; make_resident() comes first")
        return cast("dict[object, R]", self._known.residents[shape])
