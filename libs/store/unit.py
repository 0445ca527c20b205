"""What the two adapters have in common: the transaction, leader's fencing, resident tables.

``sql`` and ``memory`` give a ``Session`` (one open transaction of their database) and inherit the
rest from ``StoreCore``, so that the simulation runs the code of production down to this line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from libs.contracts.routes import Kind
from libs.store.port import (
    ConflictError,
    Delta,
    Leadership,
    NotLeaderError,
    Observer,
    Op,
    Order,
    StoreUnavailableError,
    Tx,
    Where,
)
from libs.store.rows import Batch, Key, Overlay, Row, Shape, checked, select
from libs.store.tables import Tables, open_tables

R = TypeVar("R")
# More than these wait in the database alone.
FRESH_EVENTS_MAX = 8192


class Clock(Protocol):
    """Where the store gets its ``now`` from (UTC)."""

    def now(self) -> datetime:
        """The current time."""
        ...


class Session(Protocol):
    """One open transaction of a database. Any error but NotLeaderError ends it."""

    async def get(self, shape: Shape, key: Key) -> Row | None:
        """One row."""
        ...

    async def load(self, shape: Shape, keys: Sequence[Key]) -> list[Row]:
        """Those of these rows that are there, in any order."""
        ...

    async def select(
        self,
        shape: Shape,
        where: Sequence[Where],
        order_by: Sequence[Order],
        limit: int | None,
        offset: int,
    ) -> list[Row]:
        """Rows, ties by primary key."""
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


class Unit:
    """The ``Tx`` of both adapters: buffers writes, reads through them."""

    def __init__(
        self,
        session: Session,
        tables: Tables,
        residents: Mapping[Shape, dict[Key, Row]],
        birth: Birth,
        now: datetime,
    ) -> None:
        self._session = session
        self._tables = tables
        self._residents = residents
        self._birth = birth
        self._now = now
        self._overlay = Overlay()
        self._read: dict[tuple[Shape, Key], Row | None] = {}
        self._emitted: list[Envelope] = []
        self._entered = False
        self._failure: Exception | None = None
        self.memo: dict[str, Any] = {}

    @property
    def now(self) -> datetime:
        """The service's clock when the transaction began (UTC)."""
        return self._now

    @property
    def version(self) -> int:
        """The number of leader's transactions, this one included; 0 without an epoch."""
        return self._session.version

    async def get(self, kind: type[R], *key: object) -> R | None:
        """The row with this primary key, or None."""
        shape = self._tables.shape(kind)
        wanted = shape.key_from(key)
        written = self._overlay.writes.get(shape, {})
        if wanted in written:
            return written[wanted]
        if shape in self._residents:
            return self._residents[shape].get(wanted)
        if (shape, wanted) not in self._read:
            self._read[shape, wanted] = await self._guard(self._session.get(shape, wanted))
        return self._read[shape, wanted]

    async def load(self, kind: type[object], *keys: tuple[object, ...]) -> None:
        """Read the rows with these primary keys at once, for ``get``."""
        shape = self._tables.shape(kind)
        if shape in self._residents:
            return
        written = self._overlay.writes.get(shape, {})
        wanted = [
            key
            for key in dict.fromkeys(map(shape.key_from, keys))
            if key not in written and (shape, key) not in self._read
        ]
        if not wanted:
            return
        rows = await self._guard(self._session.load(shape, wanted))
        self._read |= dict.fromkeys((shape, key) for key in wanted)
        self._read |= {(shape, shape.key_of(row)): row for row in rows}

    async def select(
        self,
        kind: type[R],
        *where: Where,
        order_by: Sequence[Order] = (),
        limit: int | None = None,
        offset: int = 0,
    ) -> list[R]:
        """Rows that meet every condition. Without an order: by primary key."""
        shape = self._tables.shape(kind)
        checked(shape, where, order_by)
        if shape in self._residents:
            rows = self._candidates(shape, where)
            return select(shape, rows, where, order_by, limit, offset)
        await self._flush()
        return await self._guard(self._session.select(shape, where, order_by, limit, offset))

    def _candidates(self, shape: Shape, where: Sequence[Where]) -> Iterable[Row]:
        """A resident table's rows that can match: one, if the key is given, else all."""
        fixed = {item.column: item.value for item in where if item.op is Op.EQ}
        stored = self._residents[shape]
        if not all(name in fixed for name in shape.key):
            return self._overlay.over(shape, stored)
        key = shape.key_from(tuple(fixed[name] for name in shape.key))
        row = self._overlay.writes.get(shape, {}).get(key, None)
        if row is None and key not in self._overlay.writes.get(shape, {}):
            row = stored.get(key)
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
        """Put an event in the outbox. ValueError if the message is no event."""
        if ROUTES[type(message)].kind is not Kind.EVENT:
            raise ValueError(f"{type(message).__name__} is no event; only events are emitted")
        birth = self._birth
        self._emitted.append(
            Envelope(birth.new_id(), birth.source, self._now, message, birth.traceparent())
        )

    async def unseen(self, event_ids: Sequence[str]) -> set[str]:
        """Enter event ids in the inbox; returns those that were not there before."""
        if not event_ids:
            return set()
        self._entered = True
        return await self._guard(self._session.enter(event_ids, self._now))

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


class StoreCore:
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
        open_tables(tables)
        self._tables = tables
        self._clock = clock
        self._birth = Birth(source, new_id, traceparent)
        self._observers: list[Observer] = []
        self._residents: dict[Shape, dict[Key, Row]] = {}
        self._outbox_changed = asyncio.Event()
        # Events of our own commits that are not published yet, by their rows in the outbox; kept
        # from the first look on. What does not fit, or may have landed, is found by a look.
        self._fresh: dict[int, Envelope] = {}
        self._relays = False
        self._look_due = False
        # Leader's transactions take turns here: they land in memory in the order of the commits.
        self._turn = asyncio.Lock()
        self._turn_of: asyncio.Task[Any] | None = None
        # A leader's transaction whose commit was not answered.
        self._doubt: Landed | None = None

    async def _begin(self, epoch: int | None) -> Session:
        """Open a transaction; with an epoch, fenced by it (NotLeaderError)."""
        raise NotImplementedError

    async def _lead(self) -> Leadership:
        """Wait for the leadership."""
        raise NotImplementedError

    async def _look_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        """Unpublished events, oldest first, from the database."""
        raise NotImplementedError

    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published, in the database."""
        raise NotImplementedError

    async def outgoing(self, limit: int, *, look: bool = True) -> list[tuple[int, Envelope]]:
        """Unpublished events, oldest first; see the port."""
        if not look and self._relays and not self._look_due:
            return list(islice(self._fresh.items(), limit))
        # From before the looking on: what commits meanwhile is found, kept, or both.
        self._relays, self._look_due = True, False
        try:
            return await self._look_outgoing(limit)
        except BaseException:
            self._look_due = True
            raise

    async def published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published."""
        await self._mark_published(row_ids)
        for row_id in row_ids:
            self._fresh.pop(row_id, None)

    def _keep_fresh(self, landed: Landed, row_ids: Sequence[int]) -> None:
        """Remember what was just put in the outbox, while there is room."""
        if not self._relays:
            return
        if len(row_ids) != len(landed.emitted) or len(self._fresh) > FRESH_EVENTS_MAX:
            self._fresh.clear()
            self._look_due = True
        else:
            self._fresh |= zip(row_ids, landed.emitted, strict=True)

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
        session = await self._begin(epoch)
        try:
            self._settle(session.version)
            residents = self._residents if epoch is not None else {}
            unit = Unit(session, self._tables, residents, self._birth, now)
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
            if epoch is not None:
                self._doubt = landed
            # It may have landed, and then its events wait.
            self._look_due = True
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
        """Apply a committed transaction to memory and tell the observers."""
        for shape, rows in landed.writes.items():
            table = self._residents.get(shape)
            if table is None:
                continue
            for key, row in rows.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        if landed.emitted:
            self._keep_fresh(landed, row_ids)
            self._outbox_changed.set()
        if self._observers and landed.writes:
            delta = landed.delta()
            for observer in self._observers:
                observer(delta)

    async def lead(self) -> Leadership:
        """Wait until this process leads the service; resident tables have to be loaded anew."""
        leadership = await self._lead()
        self._residents = {}
        self._doubt = None
        self._fresh.clear()
        self._look_due = True
        return leadership

    async def make_resident(self, *kinds: type[object]) -> None:
        """Load these tables into memory (leader only: it alone writes them)."""
        async with self._turn:
            loaded: dict[Shape, dict[Key, Row]] = {}
            session = await self._begin(None)
            try:
                for kind in kinds:
                    shape = self._tables.shape(kind)
                    rows = await session.select(shape, (), (), None, 0)
                    loaded[shape] = {shape.key_of(row): row for row in rows}
            finally:
                await session.rollback()
            self._residents = self._residents | loaded

    def resident(self, kind: type[R]) -> dict[object, R]:
        """The rows of a resident table by primary key; KeyError if it was not loaded."""
        shape = self._tables.shape(kind)
        if shape not in self._residents:
            raise KeyError(f"{kind.__name__} is not resident; make_resident() comes first")
        return cast("dict[object, R]", self._residents[shape])
