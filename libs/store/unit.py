"""The transaction of both adapters: what its reads see, and what it leaves behind.

``sql`` and ``memory`` give a ``Session``, one open transaction of their database; ``core`` opens
and lands a ``Tx`` over it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from libs.contracts.base import Message
from libs.contracts.envelope import EVENT_BYTES_MAX, Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.store.recent import Recent
from libs.store.rows import Batch, Key, Overlay, Row, Shape, checked, select
from libs.store.tables import Tables
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
# So many unreadable rows a select steps over.
UNREADABLE_MAX = 10_000


class Clock(Protocol):
    """Where the store gets its ``now`` from (UTC)."""

    def now(self) -> datetime:
        """The current time."""
        ...


class Session(Protocol):
    """One open transaction of a database. Any error but NotLeaderError ends it. A row that cannot
    be decoded is an ``UnreadableRow`` among the others."""

    async def get(self, shape: Shape, key: Key) -> Row | None:
        """One row."""
        ...

    async def load(self, shape: Shape, keys: Sequence[Key]) -> list[Row]:
        """Those of these rows that are there, in any order."""
        ...

    async def select(self, shape: Shape, query: Query) -> list[Row]:
        """The rows of a query."""
        ...

    def pages(self, shape: Shape, rows_max: int) -> AsyncIterator[list[Row]]:
        """A whole table in the order of its keys; each page is a statement of its own."""
        ...

    async def write(self, batch: Batch) -> None:
        """Carry out deletions and upserts."""
        ...

    async def enter(self, event_ids: Sequence[str], now: datetime) -> set[str]:
        """Insert into the inbox; returns the new ones."""
        ...

    async def conclude(self, batch: Batch | None, envelopes: Sequence[Envelope]) -> None:
        """The last writes before the commit; events go into the outbox in this order."""
        ...

    async def commit(self) -> None:
        """Make it last. Any error but ConflictError leaves the outcome unknown."""
        ...

    async def rollback(self) -> None:
        """Forget it; never raises."""
        ...

    @property
    def version(self) -> int:
        """The leader's version that this transaction will have; 0 for others."""
        ...

    @property
    def outbox_ids(self) -> Sequence[int]:
        """The rows of the events in the outbox, in their order; known after the commit."""
        ...


@dataclass(frozen=True, slots=True)
class Landed:
    """What a transaction leaves behind when it has committed."""

    version: int
    writes: Mapping[Shape, Mapping[Key, Row | None]]
    emitted: Sequence[Envelope]

    def delta(self) -> Delta:
        """For the observers."""
        puts: list[object] = []
        deleted: list[tuple[type[object], tuple[object, ...]]] = []
        for shape, rows in self.writes.items():
            puts += [row for row in rows.values() if row is not None]
            deleted += [
                (shape.kind, shape.key_parts(key)) for key, row in rows.items() if row is None
            ]
        return Delta(tuple(puts), tuple(deleted))


@dataclass(frozen=True, slots=True)
class Birth:
    """What every event of a store is born with."""

    source: str
    new_id: Callable[[], str]
    traceparent: Callable[[], str]


@dataclass(slots=True)
class Known:
    """What a process keeps in memory: the callback for unreadable rows, and as leader whole tables
    and the newest rows of others."""

    report: Callable[[UnreadableRow], None] = lambda _row: None
    recent: Recent = field(default_factory=lambda: Recent(()))
    residents: dict[Shape, dict[Key, Row]] = field(default_factory=dict[Shape, dict[Key, Row]])
    # Of resident tables: rows that could not be decoded, by their encoded keys.
    unreadable: dict[Shape, dict[tuple[object, ...], UnreadableRow]] = field(
        default_factory=dict[Shape, dict[tuple[object, ...], UnreadableRow]]
    )


class Tx:
    """One transaction: reads see its own writes, everything lands at once or not at all."""

    def __init__(
        self,
        session: Session,
        tables: Tables,
        known: Known,
        birth: Birth,
        now: datetime,
    ) -> None:
        self._session = session
        self._tables = tables
        self._known = known
        self._birth = birth
        # The service's clock when the transaction began (UTC).
        self.now = now
        # With a leader's transaction: the number of leader's transactions so far, this one
        # included. 0 without one.
        self.version = session.version
        # For what a service has found out for the rest of this transaction; kept nowhere.
        self.memo: dict[str, Any] = {}
        # The rows that this transaction's selects have left out.
        self.unreadable: list[UnreadableRow] = []
        self._overlay = Overlay()
        self._read: dict[tuple[Shape, Key], Row | None] = {}
        self._emitted: list[Envelope] = []
        self._entered = False
        self._failure: Exception | None = None

    async def get(self, kind: type[R], *key: object) -> R | None:
        """The row with this primary key, or None. UnreadableRowError if it cannot be decoded: it
        is there, so nobody may take it for new."""
        shape = self._tables.shape(kind)
        wanted = shape.key_from(key)
        written = self._overlay.writes.get(shape, {})
        if wanted in written:
            return written[wanted]
        if shape in self._known.residents:
            found = self._known.residents[shape].get(wanted)
            return self._lost_row(shape, wanted) if found is None else found
        recent = self._known.recent.of(shape)
        if wanted in recent:
            return recent[wanted]
        if (shape, wanted) not in self._read:
            self._read[shape, wanted] = await self._guard(self._session.get(shape, wanted))
        return self._readable(self._read[shape, wanted])

    def _readable(self, row: Row | None) -> Row | None:
        """The row; UnreadableRowError, which is no failure of the transaction."""
        if type(row) is UnreadableRow:
            self._known.report(row)
            raise UnreadableRowError(row)
        return row

    def _lost_row(self, shape: Shape, key: Key) -> Row | None:
        """None for a row of a resident table that is not there; raises if it is unreadable."""
        lost = self._known.unreadable.get(shape)
        if not lost:
            return None
        return self._readable(lost.get(shape.encoded_key(key)))

    async def load(self, kind: type[object], *keys: tuple[object, ...]) -> None:
        """Read the rows with these primary keys at once: afterwards ``get`` has them, or that
        there are none, without asking again."""
        shape = self._tables.shape(kind)
        if shape in self._known.residents:
            return
        written, recent = self._overlay.writes.get(shape, {}), self._known.recent.of(shape)
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
        """Rows that meet every condition. Without an order: by primary key.

        A row that cannot be decoded is left out, so that it does not take the others with it: it
        is reported (``Store.on_unreadable``), and noted in ``unreadable``. A limit counts the rows
        that are returned. UnreadableRowError only if there are more unreadable rows than a
        transaction can step over.
        """
        shape, query = self._tables.shape(kind), Query(where, order_by, limit, offset)
        checked(shape, query)
        if shape in self._known.residents:
            for lost in self._known.unreadable.get(shape, {}).values():
                self._leave_out(lost)
            return select(shape, self._candidates(shape, where), query)
        await self._flush()
        return await self._select(shape, query)

    async def _select(self, shape: Shape, query: Query) -> list[Row]:
        """As the session does it, without unreadable rows: in their place the next ones are read,
        because fewer rows than the limit mean to a caller that there are no more."""
        limit = asked = query.limit
        while True:
            rows: list[Row] = await self._guard(
                self._session.select(shape, query._replace(limit=asked))
            )
            bad = [row for row in rows if type(row) is UnreadableRow]
            if not bad:
                return rows
            if limit is None or asked is None or len(rows) < asked or len(rows) - len(bad) >= limit:
                break
            if len(bad) > UNREADABLE_MAX:
                raise UnreadableRowError(bad[0])
            asked = limit + 2 * len(bad)
        good: list[Row] = []
        for row in rows:
            if limit is not None and len(good) == limit:
                break
            if type(row) is UnreadableRow:
                self._leave_out(row)
            else:
                good.append(row)
        return good

    def _leave_out(self, row: UnreadableRow) -> None:
        if row not in self.unreadable:
            self.unreadable.append(row)
            self._known.report(row)

    def _candidates(self, shape: Shape, where: Sequence[Where]) -> Iterable[Row]:
        """A resident table's rows that can match: one, if the key is given, else all."""
        fixed = {item.column: item.value for item in where if item.op is Op.EQ}
        stored, written = self._known.residents[shape], self._overlay.writes.get(shape, {})
        if not all(name in fixed for name in shape.key):
            return self._overlay.over(shape, stored)
        key = shape.key_from(tuple(fixed[name] for name in shape.key))
        row = (written if key in written else stored).get(key)
        return [] if row is None else [row]

    def put(self, *rows: object) -> None:
        """Insert rows, or replace those with the same primary key. TypeError names a field whose
        value its column cannot hold."""
        for row in rows:
            shape = self._tables.shape(type(row))
            shape.check(row)
            self._overlay.put(shape, row)

    def delete(self, kind: type[object], *key: object) -> None:
        """Remove the row with this primary key, if there is one."""
        shape = self._tables.shape(kind)
        self._overlay.delete(shape, shape.key_from(key))

    def emit(self, message: Message) -> None:
        """Put an event in the outbox; it is published after the commit, at least once. ValueError
        if the message is no event; EventTooLargeError, after which the transaction cannot commit,
        if the bus could never take it."""
        if ROUTES[type(message)].kind is not Kind.EVENT:
            raise ValueError(f"{type(message).__name__} is no event; only events are emitted")
        birth = self._birth
        envelope = Envelope(birth.new_id(), birth.source, self.now, message, birth.traceparent())
        size = len(envelope.body())
        if size > EVENT_BYTES_MAX:
            self._failure = self._failure or EventTooLargeError(
                envelope.subject, size, EVENT_BYTES_MAX
            )
            raise self._failure
        self._emitted.append(envelope)

    async def unseen(self, event_ids: Sequence[str]) -> set[str]:
        """Enter event ids in the inbox; returns those that were not there before."""
        if not event_ids:
            return set()
        self._entered = True
        return await self._guard(self._session.enter(event_ids, self.now))

    async def finish(self) -> Landed | None:
        """Tell the database everything that is left. None if nothing was written at all."""
        if self._failure is not None:
            # The body swallowed the error, but the database has forgotten the transaction.
            raise self._failure
        batch = self._overlay.take()
        if batch is not None or self._emitted:
            await self._guard(self._session.conclude(batch, self._emitted))
        if not (self._overlay.writes or self._emitted or self._entered):
            return None
        return Landed(self.version, self._overlay.writes, self._emitted)

    async def _flush(self) -> None:
        batch = self._overlay.take()
        if batch is not None:
            await self._guard(self._session.write(batch))

    async def _guard(self, step: Any) -> Any:  # noqa: ANN401 - passes through what the step gives
        """Remember the first failure: after it the transaction cannot commit."""
        try:
            return await step
        except Exception as error:
            self._failure = self._failure or error
            raise
