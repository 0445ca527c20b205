"""``Tx``, the transaction of both adapters: its reads, its writes and its events.

``sql`` and ``memory`` provide a ``Session``, one open transaction of their database. ``core`` opens
a ``Tx`` on a session and commits it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from libs.contracts.base import Message
from libs.contracts.envelope import EVENT_BYTES_MAX, Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.store import sums
from libs.store.recent import Recent
from libs.store.rows import Batch, Key, Overlay, Row, Shape, checked, select
from libs.store.sums import SpanGroup, SpanQuery
from libs.store.tables import Tables
from libs.store.task_traces import TaskTrace, TaskTraces
from libs.store.terms import (
    Delta,
    EventTooLargeError,
    Op,
    Order,
    Query,
    UnreadableRow,
    UnreadableRowError,
    Where,
)

R = TypeVar("R")
# How many unreadable rows a select skips at most.
UNREADABLE_MAX = 10_000


class Clock(Protocol):
    """The clock of the store (UTC)."""

    def now(self) -> datetime:
        """The current time."""
        ...


class Session(Protocol):
    """One open transaction of a database. Any error except NotLeaderError ends it. Reads return an
    ``UnreadableRow`` in place of a row that cannot be decoded."""

    async def get(self, shape: Shape, key: Key) -> Row | None:
        """Return one row, or None."""
        ...

    async def load(self, shape: Shape, keys: Sequence[Key]) -> list[Row]:
        """Return those of these rows that exist, in any order."""
        ...

    async def select(self, shape: Shape, query: Query) -> list[Row]:
        """Return the rows of a query."""
        ...

    async def span_sums(self, shape: Shape, query: SpanQuery) -> list[SpanGroup]:
        """Return the groups of a query."""
        ...

    def pages(self, shape: Shape, rows_max: int) -> AsyncIterator[list[Row]]:
        """Read a whole table in the order of its keys, with one statement for each page."""
        ...

    async def write(self, batch: Batch) -> None:
        """Carry out deletions and upserts."""
        ...

    async def enter(self, event_ids: Sequence[str], now: datetime) -> set[str]:
        """Insert event ids into the inbox; return those that are new."""
        ...

    async def conclude(self, batch: Batch | None, envelopes: Sequence[Envelope]) -> None:
        """Carry out the last writes before the commit; append events to the outbox in order."""
        ...

    async def commit(self) -> None:
        """Commit. Any error except ConflictError leaves the outcome unknown."""
        ...

    async def rollback(self) -> None:
        """Roll back; never raises."""
        ...

    @property
    def version(self) -> int:
        """The version that this leader's transaction will have; 0 for other transactions."""
        ...

    @property
    def outbox_ids(self) -> Sequence[int]:
        """The row ids of the events in the outbox, in their order; available after the commit."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a committed transaction."""

    version: int
    writes: Mapping[Shape, Mapping[Key, Row | None]]
    emitted: Sequence[Envelope]

    def delta(self) -> Delta:
        """Return the changes in the form that observers receive."""
        puts: list[object] = []
        deleted: list[tuple[type[object], tuple[object, ...]]] = []
        for shape, rows in self.writes.items():
            puts += [row for row in rows.values() if row is not None]
            deleted += [
                (shape.kind, shape.key_parts(key)) for key, row in rows.items() if row is None
            ]
        return Delta(tuple(puts), tuple(deleted))


@dataclass(frozen=True, slots=True)
class EventDefaults:
    """The fields that every new event of a store has in common."""

    source: str
    new_id: Callable[[], str]
    traceparent: Callable[[], str]
    # None: events that no handler emits belong to no trace.
    traces: TaskTraces | None = None


@dataclass(slots=True)
class ProcessMemory:
    """The callback for unreadable rows and, in a leader, the rows kept in memory: whole tables, and
    the newest rows of others."""

    report: Callable[[UnreadableRow], None] = lambda _row: None
    recent: Recent = field(default_factory=lambda: Recent(()))
    residents: dict[Shape, dict[Key, Row]] = field(default_factory=dict[Shape, dict[Key, Row]])
    # The rows of resident tables that could not be decoded, by their encoded keys.
    unreadable: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = field(
        default_factory=dict[Shape, dict[tuple[object, ...], UnreadableRow]]
    )


class Tx:
    """One transaction: its reads see its own writes, and all its writes commit or none."""

    def __init__(
        self,
        session: Session,
        tables: Tables,
        memory: ProcessMemory,
        defaults: EventDefaults,
        now: datetime,
    ) -> None:
        self._session = session
        self._tables = tables
        self._memory = memory
        self._event_defaults = defaults
        # The service's clock when the transaction began (UTC).
        self.now = now
        # In a leader's transaction the number of leader's transactions so far, including this one;
        # 0 in others.
        self.version = session.version
        # A service's own cache for the rest of this transaction; it is not stored.
        self.memo: dict[str, Any] = {}
        # The unreadable rows that this transaction's selects have left out.
        self.unreadable: list[UnreadableRow] = []
        self._overlay = Overlay()
        self._read: dict[tuple[Shape, Key], Row | None] = {}
        self._emitted: list[Envelope] = []
        # Called after the commit.
        self._on_commit: list[Callable[[], None]] = []
        self._entered = False
        self._failure: Exception | None = None

    async def get(self, kind: type[R], *key: object) -> R | None:
        """Return the row with this primary key, or None. Raises UnreadableRowError if the row
        exists but cannot be decoded, so that no caller takes the key for a new one."""
        shape = self._tables.shape(kind)
        wanted = shape.key_from(key)
        written = self._overlay.writes.get(shape, {})
        if wanted in written:
            return written[wanted]
        if shape in self._memory.residents:
            found = self._memory.residents[shape].get(wanted)
            return self._lost_row(shape, wanted) if found is None else found
        recent = self._memory.recent.of(shape)
        if wanted in recent:
            return recent[wanted]
        if (shape, wanted) not in self._read:
            self._read[shape, wanted] = await self._guard(self._session.get(shape, wanted))
        return self._readable(self._read[shape, wanted])

    def _readable(self, row: Row | None) -> Row | None:
        """Return the row. Raises UnreadableRowError, after which the transaction can go on."""
        if type(row) is UnreadableRow:
            self._memory.report(row)
            raise UnreadableRowError(row)
        return row

    def _lost_row(self, shape: Shape, key: Key) -> Row | None:
        """Return None for a missing row of a resident table; raise if the row is unreadable."""
        lost = self._memory.unreadable.get(shape)
        if not lost:
            return None
        return self._readable(lost.get(shape.encoded_key(key)))

    async def load(self, kind: type[object], *keys: tuple[object, ...]) -> None:
        """Read the rows with these primary keys in one query. Afterwards ``get`` answers for these
        keys without a query."""
        shape = self._tables.shape(kind)
        if shape in self._memory.residents:
            return
        written, recent = self._overlay.writes.get(shape, {}), self._memory.recent.of(shape)
        wanted = [
            key
            for key in dict.fromkeys(map(shape.key_from, keys))
            if key not in written and key not in recent and (shape, key) not in self._read
        ]
        if not wanted:
            return
        rows = await self._guard(self._session.load(shape, wanted))
        self._read |= dict.fromkeys((shape, key) for key in wanted)
        by_encoded: dict[tuple[object, ...], Key] = {}
        for row in rows:
            if type(row) is UnreadableRow:
                by_encoded = by_encoded or {shape.encoded_key(key): key for key in wanted}
                self._read[shape, by_encoded[row.key]] = row
            else:
                self._read[shape, shape.key_of(row)] = row

    async def select(
        self,
        kind: type[R],
        *where: Where,
        order_by: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> list[R]:
        """Return the rows that meet every condition, by default in the order of the primary key.

        A row that cannot be decoded is left out, reported (``Store.on_unreadable``) and added to
        ``unreadable``, so that the other rows stay available. A limit counts the returned rows.
        Raises UnreadableRowError only if there are more than ``UNREADABLE_MAX`` unreadable rows.
        """
        shape, query = self._tables.shape(kind), Query(where, order_by, limit, offset)
        checked(shape, query)
        if shape in self._memory.residents:
            for lost in self._memory.unreadable.get(shape, {}).values():
                self._leave_out(lost)
            return select(shape, self._candidates(shape, where), query)
        await self._flush()
        return await self._select(shape, query)

    async def _select(self, shape: Shape, query: Query) -> list[Row]:
        """Select through the session and leave unreadable rows out. The next rows take their place,
        because fewer rows than the limit mean to a caller that no more exist."""
        limit = requested = query.limit
        while True:
            rows: list[Row] = await self._guard(
                self._session.select(shape, query._replace(limit=requested))
            )
            bad = [row for row in rows if type(row) is UnreadableRow]
            if not bad:
                return rows
            if limit is None or requested is None or len(rows) < requested:
                break
            if len(rows) - len(bad) >= limit:
                break
            if len(bad) > UNREADABLE_MAX:
                raise UnreadableRowError(bad[0])
            requested = limit + 2 * len(bad)
        good: list[Row] = []
        for row in rows:
            if limit is not None and len(good) == limit:
                break
            if type(row) is UnreadableRow:
                self._leave_out(row)
            else:
                good.append(row)
        return good

    async def span_sums(self, kind: type[object], query: SpanQuery) -> list[SpanGroup]:
        """Add up what rows held in a period: one group for each day and combination of values, in
        that order. Groups without rows are left out."""
        shape = self._tables.shape(kind)
        sums.checked(shape, query)
        checked(shape, Query(query.where))
        if shape in self._memory.residents:
            rows = self._overlay.over(shape, self._memory.residents[shape])
            return sums.add_up(shape, rows, query)
        await self._flush()
        return await self._guard(self._session.span_sums(shape, query))

    def _leave_out(self, row: UnreadableRow) -> None:
        if row not in self.unreadable:
            self.unreadable.append(row)
            self._memory.report(row)

    def _candidates(self, shape: Shape, where: Sequence[Where]) -> Iterable[Row]:
        """Return the rows of a resident table that can match: one if the key is given, else all."""
        fixed = {item.column: item.value for item in where if item.op is Op.EQ}
        stored, written = self._memory.residents[shape], self._overlay.writes.get(shape, {})
        if not all(name in fixed for name in shape.key):
            return self._overlay.over(shape, stored)
        key = shape.key_from(tuple(fixed[name] for name in shape.key))
        row = (written if key in written else stored).get(key)
        return [] if row is None else [row]

    def put(self, *rows: object) -> None:
        """Insert rows, or replace those with the same primary key. Raises TypeError, with the name
        of the field, if a column cannot hold a value."""
        for row in rows:
            shape = self._tables.shape(type(row))
            shape.check(row)
            self._overlay.put(shape, row)

    def delete(self, kind: type[object], *key: object) -> None:
        """Remove the row with this primary key, if it exists."""
        shape = self._tables.shape(kind)
        self._overlay.delete(shape, shape.key_from(key))

    def emit(self, message: Message) -> None:
        """Put an event in the outbox; the relay publishes it after the commit, at least once.
        Raises ValueError if the message is no event. Raises EventTooLargeError if the bus could
        never accept it; the transaction cannot commit then."""
        if ROUTES[type(message)].kind is not Kind.EVENT:
            raise ValueError(f"{type(message).__name__} is no event; only events are emitted")
        defaults = self._event_defaults
        envelope = Envelope(
            defaults.new_id(), defaults.source, self.now, message, defaults.traceparent()
        )
        size = len(envelope.body())
        if size > EVENT_BYTES_MAX:
            self._failure = self._failure or EventTooLargeError(
                envelope.subject, size, EVENT_BYTES_MAX
            )
            raise self._failure
        self._emitted.append(envelope)

    async def unseen(self, event_ids: Sequence[str]) -> set[str]:
        """Enter event ids in the inbox; return those that were not in it before."""
        if not event_ids:
            return set()
        self._entered = True
        return await self._guard(self._session.enter(event_ids, self.now))

    async def finish(self) -> Committed | None:
        """Send the remaining writes to the database. Returns None if nothing was written at all."""
        if self._failure is not None:
            # The caller caught the error, but the database has already aborted the transaction.
            raise self._failure
        if self._event_defaults.traces is not None and self._emitted:
            await self._continue_traces(self._event_defaults.traces)
        batch = self._overlay.take()
        if batch is not None or self._emitted:
            await self._guard(self._session.conclude(batch, self._emitted))
        if not (self._overlay.writes or self._emitted or self._entered):
            return None
        return Committed(self.version, self._overlay.writes, self._emitted)

    async def _continue_traces(self, traces: TaskTraces) -> None:
        """Put events that a loop emitted into their tasks' traces."""
        outside = {
            number: str(task_id)
            for number, each in enumerate(self._emitted)
            if not each.traceparent and (task_id := getattr(each.message, "task_id", ""))
        }
        if not outside:
            return
        await self.load(TaskTrace, *((task_id,) for task_id in set(outside.values())))
        for number, task_id in outside.items():
            with suppress(UnreadableRowError):
                row = await self.get(TaskTrace, task_id)
                place = None if row is None else traces.place(row, self._emitted[number].message)
                if place is None:
                    continue
                self._emitted[number] = self._emitted[number].with_traceparent(place.traceparent)
                self._on_commit.append(place.committed)
                if place.row is not None:
                    self.put(place.row)

    def committed(self) -> None:
        """Called by the store once the transaction is committed."""
        for each in self._on_commit:
            each()

    async def _flush(self) -> None:
        batch = self._overlay.take()
        if batch is not None:
            await self._guard(self._session.write(batch))

    async def _guard(self, step: Any) -> Any:  # noqa: ANN401 - returns the result of the step
        """Await a step and keep its first failure: the transaction cannot commit after it."""
        try:
            return await step
        except Exception as error:
            self._failure = self._failure or error
            raise
