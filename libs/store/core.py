"""``Store``: the operations of a service on its schema, and the part that needs no database.

``sql`` and ``memory`` inherit from it, so the simulation runs the same code as production
above the adapter.
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
from libs.store.task_traces import TaskTraces
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
from libs.store.unit import Clock, Committed, EventDefaults, ProcessMemory, Session, Tx

R = TypeVar("R")
# Limits of the unpublished events that are kept in memory. Above them, only the database has them.
FRESH_EVENTS_MAX = 8192
FRESH_BYTES_MAX = 4 * BATCH_BYTES_MAX
# A resident table is loaded in pages of this many rows, so each page stays within the statement
# timeout.
RESIDENT_PAGE_ROWS = 10_000


class _Term:
    """A leadership that also ends when this process's memory no longer matches the rows."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._failed = asyncio.Event()
        self.epoch = leadership.epoch
        self.release = leadership.release
        self.failure: ObserverError | None = None

    def fail(self, failure: ObserverError) -> None:
        """End the term with this failure; later failures are ignored."""
        self.failure = self.failure or failure
        self._failed.set()

    async def lost(self) -> None:
        """Return when the leadership is gone; raise the failure that ended the term, if any."""
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
    """One service's schema, accessed with that service's own database role."""

    def __init__(
        self,
        tables: Tables,
        *,
        clock: Clock,
        source: str,
        new_id: Callable[[], str],
        traceparent: Callable[[], str] = str,
        traces: TaskTraces | None = None,
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._event_defaults = EventDefaults(source, new_id, traceparent, traces)
        self._observers: list[Observer] = []
        self._memory = ProcessMemory(
            recent=Recent(each for each in tables.shapes.values() if each.recent)
        )
        # Set after a commit that emitted events. The relay clears it and waits on it.
        self.outbox_changed = asyncio.Event()
        # Unpublished events that this process committed, by their row ids in the outbox. They are
        # kept from the first query on. A query finds the events of other processes and those of
        # commits whose outcome is unknown.
        self._fresh: dict[int, Envelope] = {}
        self._fresh_bytes = 0
        self._relays = False
        self._query_due = False
        # Serialises the leader's transactions, so memory is updated in the order of the commits.
        self._leader_lock = asyncio.Lock()
        self._leader_lock_owner: asyncio.Task[Any] | None = None
        # A leader's transaction whose commit got no answer.
        self._doubt: Committed | None = None
        self._term: _Term | None = None

    @abstractmethod
    async def _begin(self, epoch: int | None) -> Session:
        """Open a transaction. With an epoch, raise NotLeaderError if another process leads."""

    @abstractmethod
    async def _lead(self) -> Leadership:
        """Wait until this process has the leadership."""

    @abstractmethod
    async def _query_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        """Read unpublished events from the database, oldest first."""

    @abstractmethod
    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published, in the database."""

    @abstractmethod
    async def _mark_refused(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as refused, in the database."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """False while the database is unreachable, as observed by the leader connection or by a
        process that waits for the leadership."""

    @abstractmethod
    async def refused(self, after: int, limit: int) -> list[RefusedEvent]:
        """Return refused events with ids greater than ``after``, in the order of their ids: at most
        ``limit``, and no further ones once their bodies reach ``BATCH_BYTES_MAX``."""

    @abstractmethod
    async def count_refused(self) -> int:
        """Count the refused events."""

    @abstractmethod
    async def count_outgoing(self, most: int) -> int:
        """Count the unpublished events that are not refused, up to ``most``."""

    @abstractmethod
    async def meet_bus_server(self, server_id: str, periods: int) -> int:
        """Store which bus server the outbox is published to. If the server has changed, mark the
        events of the current period and of the ``periods`` before it as unpublished again, because
        the old server may have died before it wrote them to disk. Returns the number of these
        events. The call needs no query while the server stays the same."""

    @abstractmethod
    async def next_period(self) -> None:
        """Begin the next period of the outbox. An event belongs to the period in which it was
        published. Periods are numbered, so no clock decides which events are published again or
        dropped."""

    @abstractmethod
    async def prune_outbox(self, periods: int) -> int:
        """Drop published events that are older than the current period and the ``periods`` before
        it. Returns the number of dropped events."""

    @abstractmethod
    async def oldest_seen(self) -> datetime | None:
        """Return when the oldest event of the inbox was entered; None if the inbox is empty."""

    @abstractmethod
    async def prune_inbox(self, before: datetime) -> int:
        """Drop the inbox's entries from before a time. Returns the number of dropped entries."""

    @abstractmethod
    async def close(self) -> None:
        """Give up the leadership and close the connections."""

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:
        """Return unpublished events of the outbox with their row ids, oldest first: at most
        ``limit``, and no further ones once their bodies reach ``BATCH_BYTES_MAX`` (``is_full``).

        Without ``query``, return those that this process has committed since its first query, from
        memory; the next query finds the events of other processes and those of commits whose
        outcome is unknown. Refused events are left out. An event that cannot be read is marked as
        refused.
        """
        if not query and self._relays and not self._query_due:
            fresh = islice(self._fresh.items(), limit)
            return list(within_bytes(fresh, lambda row: row[1].body()))
        # Set before the query: an event that commits meanwhile is found by it, kept, or both.
        self._relays, self._query_due = True, False
        try:
            return await self._query_outgoing(limit)
        except BaseException:
            self._query_due = True
            raise

    async def published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published and no longer refused."""
        await self._mark_published(row_ids)
        self._drop_fresh(row_ids)

    async def refuse(self, row_ids: Sequence[int]) -> None:
        """Mark events that the bus refused: ``outgoing`` leaves them out from now on."""
        await self._mark_refused(row_ids)
        self._drop_fresh(row_ids)

    def _drop_fresh(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            envelope = self._fresh.pop(row_id, None)
            if envelope is not None:
                self._fresh_bytes -= len(envelope.body())

    def _keep_fresh(self, committed: Committed, row_ids: Sequence[int]) -> None:
        """Keep the events that a commit put in the outbox, within the limits of memory."""
        if not self._relays:
            return
        unknown = len(row_ids) != len(committed.emitted)
        too_many = len(self._fresh) > FRESH_EVENTS_MAX or self._fresh_bytes > FRESH_BYTES_MAX
        if unknown or too_many:
            self._forget_fresh()
        else:
            self._fresh |= zip(row_ids, committed.emitted, strict=True)
            self._fresh_bytes += sum(len(each.body()) for each in committed.emitted)

    def _forget_fresh(self) -> None:
        self._fresh.clear()
        self._fresh_bytes = 0
        self._query_due = True

    @property
    def in_doubt(self) -> bool:
        """True while the outcome of a leader's commit is unknown, because its answer was lost. The
        next leader's transaction finds out: if the commit took effect, it calls the observers then
        and raises StoreUnavailableError."""
        return self._doubt is not None

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with the changed rows after each commit of this store, in the order of
        the commits. If it raises, the transaction raises ObserverError and the leader's term ends.
        """
        self._observers.append(observer)

    @asynccontextmanager
    async def transaction(self, *, epoch: int | None = None) -> AsyncGenerator[Tx]:
        """Open a transaction that commits at the end of the context and rolls back on an exception.

        With an epoch it is a leader's transaction, which raises NotLeaderError if another process
        leads. Raises ConflictError, DatabaseFaultError and StoreUnavailableError; a unique conflict
        may only be raised at the end of the context. Raises ObserverError if an observer failed,
        after this commit or after an earlier one of this term.
        """
        if epoch is not None and self._leader_lock_owner is asyncio.current_task():
            raise RuntimeError("a leader's transaction inside a leader's transaction")
        async with self._leader_lock if epoch is not None else nullcontext():
            if epoch is not None:
                self._leader_lock_owner = asyncio.current_task()
            try:
                async with self._open(epoch) as tx:
                    yield tx
            finally:
                if epoch is not None:
                    self._leader_lock_owner = None

    @asynccontextmanager
    async def _open(self, epoch: int | None) -> AsyncGenerator[Tx]:
        now = self._clock.now()
        if epoch is not None and self._term is not None and self._term.failure is not None:
            # The caller may have made its decision on memory that does not match the rows.
            raise self._term.failure
        session = await self._begin(epoch)
        try:
            self._resolve_doubt(session.version)
            memory = ProcessMemory(self._memory.report) if epoch is None else self._memory
            tx = Tx(session, self._tables, memory, self._event_defaults, now)
            yield tx
            committed = await tx.finish()
        except BaseException:
            await session.rollback()
            raise
        if committed is None:
            # Nothing was written, so no commit, no version and no wait for the disk is needed.
            await session.rollback()
            return
        try:
            await session.commit()
        except (ConflictError, NotLeaderError):
            raise
        except BaseException:
            # The commit got no answer: the rows may be stored or not.
            if epoch is not None:
                self._doubt = committed
            # If the commit took effect, its events wait to be published.
            self._query_due = True
            raise
        tx.committed()
        self._apply_commit(committed, session.outbox_ids)

    def _resolve_doubt(self, version: int) -> None:
        """Determine the outcome of a commit without an answer: each commit adds one version.

        If it took effect, this transaction raises StoreUnavailableError, so that its caller starts
        again from the current state.
        """
        doubt = self._doubt
        if doubt is None or version == 0:
            return
        self._doubt = None
        if version > doubt.version:
            self._apply_commit(doubt, ())
            raise StoreUnavailableError("an earlier transaction did commit; begin again after it")

    def _apply_commit(self, committed: Committed, row_ids: Sequence[int]) -> None:
        """Apply a committed transaction to memory and call all observers.

        Raises ObserverError if one of them failed: its memory may differ from the rows then, so
        the caller must not continue as after an ordinary commit.
        """
        steps: list[Callable[[], None]] = [lambda: self._update_memory(committed, row_ids)]
        if self._observers and committed.writes:
            delta = committed.delta()
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

    def _update_memory(self, committed: Committed, row_ids: Sequence[int]) -> None:
        """Apply a committed transaction to the rows and events that the store keeps in memory."""
        if committed.version:
            self._memory.recent.land(committed.writes)
        for shape, rows in committed.writes.items():
            table = self._memory.residents.get(shape)
            if table is None:
                continue
            lost = self._memory.unreadable.get(shape)
            for key, row in rows.items():
                if lost:
                    lost.pop(shape.encoded_key(key), None)
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        if committed.emitted:
            self._keep_fresh(committed, row_ids)
            self.outbox_changed.set()

    async def lead(self) -> Leadership:
        """Wait until this process leads the service, with a higher epoch than every leader before.
        One process leads at a time. The caller has to load resident tables again."""
        leadership = self._term = _Term(await self._lead())
        self._memory.residents, self._memory.unreadable = {}, {}
        self._memory.recent.clear()
        self._doubt = None
        self._forget_fresh()
        return leadership

    async def make_resident(self, *kinds: type[object]) -> None:
        """Load these tables into memory. Only the leader may call this, because it alone writes
        these tables. From then on, reads of them in the leader's transactions are served from
        memory. Rows that cannot be decoded are reported and left out: see ``unreadable``."""
        shapes = [self._tables.shape(kind) for kind in kinds]
        loaded: dict[Shape, dict[Key, Row]] = {shape: {} for shape in shapes}
        lost: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = {shape: {} for shape in shapes}
        async with self._leader_lock:
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
            self._memory.residents = self._memory.residents | loaded
            self._memory.unreadable = self._memory.unreadable | lost
        for rows in lost.values():
            for row in rows.values():
                self._memory.report(row)

    @property
    def kinds(self) -> Sequence[type[object]]:
        """The kinds of rows that this store has."""
        return tuple(self._tables.shapes)

    def unreadable(self, kind: type[object]) -> Sequence[UnreadableRow]:
        """Return the rows of a resident table that could not be decoded and were not written since.
        ``get`` raises UnreadableRowError for them. The caller must not act on what they concern."""
        return tuple(self._memory.unreadable.get(self._tables.shape(kind), {}).values())

    def on_unreadable(self, report: Callable[[UnreadableRow], None]) -> None:
        """Call ``report`` each time an unreadable row is read."""
        self._memory.report = report

    def resident(self, kind: type[R]) -> dict[object, R]:
        """Return the rows of a resident table by primary key (a tuple if it has several columns).
        Raises KeyError if the table was not loaded. The mapping is the table itself: never change
        it."""
        shape = self._tables.shape(kind)
        if shape not in self._memory.residents:
            raise KeyError(f"{kind.__name__} is not resident; make_resident() comes first")
        return cast("dict[object, R]", self._memory.residents[shape])
