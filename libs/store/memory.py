"""The store in memory, for the simulation and for tests: the rules of PostgreSQL without its I/O.

A ``MemoryDatabase`` stands for the server and outlives the processes that use it. A ``MemoryStore``
is one process's handle; ``crash()`` and a new handle simulate a crash. The transactions of a schema
run one at a time in the order of their arrival, and nothing sleeps or is random, so a run on a
virtual clock repeats exactly. Faults: ``stop()``/``start()`` of the server, ``cut_leader()``, and a
``fault`` hook that is awaited at every ``Point`` and may wait or raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from libs.contracts.envelope import Envelope, within_bytes
from libs.store.core import Store
from libs.store.memory_database import (
    Fault,
    MemoryDatabase,
    MemoryLeadership,
    Point,
    Schema,
    Sent,
    Table,
    no_fault,
)
from libs.store.rows import Batch, Key, Row, Shape, checked, select
from libs.store.sums import SpanGroup, SpanQuery, add_up
from libs.store.tables import Tables
from libs.store.task_traces import TaskTraces
from libs.store.terms import (
    Leadership,
    NotLeaderError,
    Query,
    RefusedEvent,
    StoreUnavailableError,
)
from libs.store.unit import Clock, Session

__all__ = ["Fault", "MemoryDatabase", "MemoryStore", "Point", "no_fault"]

# The delay before the next attempt to lead after a fault.
LEAD_POLL_S = 0.5


class _MemorySession:
    """One transaction: it writes in place, keeps an undo log, and holds the schema's lock."""

    def __init__(
        self,
        database: MemoryDatabase,
        schema: Schema,
        epoch: int | None,
        handle_alive: Callable[[], None],
    ) -> None:
        self._database = database
        self._starts = database.starts
        self._handle_alive = handle_alive
        self._schema = schema
        self._epoch = epoch
        self._undo: list[tuple[Table, Key, Row | None]] = []
        self._entered: list[str] = []
        self._appended: Sequence[Envelope] = ()
        self._open = True
        self.version = 0 if epoch is None else schema.version + 1
        self.outbox_ids: list[int] = []

    def _alive(self) -> None:
        self._handle_alive()
        if self._database.down or self._database.starts != self._starts:
            raise StoreUnavailableError("the database was stopped")
        if not self._open:
            raise StoreUnavailableError("the connection is closed")

    async def get(self, shape: Shape, key: Key) -> Row | None:
        self._alive()
        return self._schema.table(shape).read(key)

    async def load(self, shape: Shape, keys: Sequence[Key]) -> list[Row]:
        self._alive()
        table = self._schema.table(shape)
        return [table.read(key) for key in keys if key in table.rows]

    async def select(self, shape: Shape, query: Query) -> list[Row]:
        self._alive()
        checked(shape, query)
        table = self._schema.table(shape)
        return table.decoded(select(shape, table.rows.values(), query))

    async def span_sums(self, shape: Shape, query: SpanQuery) -> list[SpanGroup]:
        self._alive()
        return add_up(shape, self._schema.table(shape).rows.values(), query)

    async def pages(self, shape: Shape, rows_max: int) -> AsyncGenerator[list[Row]]:
        rows = await self.select(shape, Query())
        for start in range(0, len(rows), rows_max):
            self._alive()
            yield rows[start : start + rows_max]

    async def write(self, batch: Batch) -> None:
        """Apply the deletions, then the rows, in order, and check the constraints at each row."""
        self._alive()
        for shape, keys in batch.deletes:
            for key in keys:
                self._replace(self._schema.table(shape), key, None)
        for shape, rows in batch.puts:
            for row in rows:
                self._replace(self._schema.table(shape), shape.key_of(row), row)

    def _replace(self, table: Table, key: Key, row: Row | None) -> None:
        self._undo.append((table, key, table.replace(key, row)))

    async def enter(self, event_ids: Sequence[str], now: datetime) -> set[str]:
        self._alive()
        fresh = [each for each in dict.fromkeys(event_ids) if each not in self._schema.inbox]
        self._schema.inbox.update(dict.fromkeys(fresh, now))
        self._entered += fresh
        return set(fresh)

    async def conclude(self, batch: Batch | None, envelopes: Sequence[Envelope]) -> None:
        self._alive()
        if batch is not None:
            await self.write(batch)
        self._appended = envelopes

    async def commit(self) -> None:
        schema = self._schema
        try:
            await self._database.reach(Point.BEFORE_COMMIT, schema.name)
            self._alive()
        except BaseException:
            self._close(undo=True)
            raise
        for envelope in self._appended:
            schema.outbox_id += 1
            schema.outbox[schema.outbox_id] = Sent(envelope)
            schema.unpublished[schema.outbox_id] = None
            self.outbox_ids.append(schema.outbox_id)
        if self._epoch is not None:
            schema.version = self.version
        self._close(undo=False)
        await self._database.reach(Point.AFTER_COMMIT, schema.name)

    async def rollback(self) -> None:
        self._close(undo=True)

    def _close(self, *, undo: bool) -> None:
        if not self._open:
            return
        self._open = False
        if undo:
            for table, key, row in reversed(self._undo):
                table.set(key, row)
            for event_id in self._entered:
                self._schema.inbox.pop(event_id, None)
        self._schema.turn.release()


class MemoryStore(Store):
    """One process's handle on its schema of a ``MemoryDatabase``."""

    def __init__(
        self,
        database: MemoryDatabase,
        tables: Tables,
        *,
        clock: Clock,
        source: str,
        new_id: Callable[[], str],
        traceparent: Callable[[], str] = str,
        traces: TaskTraces | None = None,
    ) -> None:
        super().__init__(
            tables,
            clock=clock,
            source=source,
            new_id=new_id,
            traceparent=traceparent,
            traces=traces,
        )
        self._database = database
        self._schema = database.schema(tables.schema)
        self._leaderships: list[MemoryLeadership] = []
        self._dead = False

    def _alive(self) -> None:
        if self._dead:
            raise StoreUnavailableError("the store is closed")

    async def _begin(self, epoch: int | None) -> Session:
        self._alive()
        await self._database.reach(Point.BEGIN, self._schema.name)
        await self._schema.turn.acquire()
        session = _MemorySession(self._database, self._schema, epoch, self._alive)
        try:
            self._alive()
            self._fence(epoch)
        except BaseException:
            await session.rollback()
            raise
        return session

    def _fence(self, epoch: int | None) -> None:
        if epoch is not None and epoch != self._schema.epoch:
            raise NotLeaderError(f"epoch {epoch} of {self._schema.name} is over")

    @property
    def connected(self) -> bool:
        """False while the database is down."""
        return not self._database.down

    async def _lead(self) -> Leadership:
        schema = self._schema
        while True:
            self._alive()
            if schema.leader is not None or self._database.down:
                await self._wait_for_change()
                continue
            try:
                await self._database.reach(Point.LEAD, schema.name)
                async with schema.turn:
                    pass  # wait for the last leader's open transaction
            except StoreUnavailableError:
                await self._wait_for_change(LEAD_POLL_S)
                continue
            if schema.leader is None and not (self._database.down or self._dead):
                schema.epoch += 1
                schema.leader = MemoryLeadership(schema)
                self._leaderships = [schema.leader]
                return schema.leader

    async def _wait_for_change(self, seconds_max: float | None = None) -> None:
        """Wait until the leadership is free or the server starts, at most ``seconds_max``."""
        waiter = asyncio.get_running_loop().create_future()
        self._schema.waiting.append(waiter)
        try:
            async with asyncio.timeout(seconds_max):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._schema.waiting.remove(waiter)

    async def _query_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        self._alive()
        await self._database.reach(Point.OUTGOING, self._schema.name)
        outbox = self._schema.outbox
        ids = sorted(each for each in self._schema.unpublished if outbox[each].refused_at is None)
        rows = ((each, outbox[each].envelope) for each in ids[:limit])
        return list(within_bytes(rows, lambda row: row[1].body()))

    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        self._alive()
        await self._database.reach(Point.PUBLISHED, self._schema.name)
        for each in row_ids:
            if each in self._schema.outbox:
                self._schema.outbox[each] = replace(
                    self._schema.outbox[each], period=self._schema.period, refused_at=None
                )
                self._schema.unpublished.pop(each, None)

    async def _mark_refused(self, row_ids: Sequence[int]) -> None:
        self._alive()
        await self._database.reach(Point.REFUSED, self._schema.name)
        outbox, now = self._schema.outbox, self._clock.now()
        for each in row_ids:
            if each in self._schema.unpublished and outbox[each].refused_at is None:
                outbox[each] = replace(outbox[each], refused_at=now)

    async def refused(self, after: int, limit: int) -> list[RefusedEvent]:
        """Return refused events, oldest first."""
        ids = [each for each in await self._refused_ids() if each > after]
        found = (_refused(each, self._schema.outbox[each]) for each in ids[:limit])
        return list(within_bytes(found, lambda event: event.body))

    async def count_refused(self) -> int:
        """Count the refused events."""
        return len(await self._refused_ids())

    async def count_outgoing(self, most: int) -> int:
        """Count the unpublished events that are not refused."""
        self._alive()
        outbox = self._schema.outbox
        waiting = [each for each in self._schema.unpublished if outbox[each].refused_at is None]
        return min(most, len(waiting))

    async def _refused_ids(self) -> list[int]:
        self._alive()
        await self._database.reach(Point.OUTGOING, self._schema.name)
        outbox = self._schema.outbox
        return sorted(
            each for each in self._schema.unpublished if outbox[each].refused_at is not None
        )

    async def meet_bus_server(self, server_id: str, periods: int) -> int:
        """Store the bus server; publish the last periods again if it has changed."""
        schema = await self._reach()
        if not server_id or schema.bus_server == server_id:
            return 0
        schema.bus_server = server_id
        found = [
            each
            for each, sent in schema.outbox.items()
            if sent.period is not None and sent.period >= schema.period - periods
        ]
        for each in found:
            schema.outbox[each] = replace(schema.outbox[each], period=None)
            schema.unpublished[each] = None
        if found:
            self.outbox_changed.set()
        return len(found)

    async def next_period(self) -> None:
        """Begin the next period of the outbox."""
        (await self._reach()).period += 1

    async def prune_outbox(self, periods: int) -> int:
        """Drop old published events."""
        schema = await self._reach()
        old = [
            each
            for each, sent in schema.outbox.items()
            if sent.period is not None and sent.period < schema.period - periods
        ]
        for each in old:
            del schema.outbox[each]
        return len(old)

    async def oldest_seen(self) -> datetime | None:
        """Return when the oldest event of the inbox was entered."""
        return min((await self._reach()).inbox.values(), default=None)

    async def prune_inbox(self, before: datetime) -> int:
        """Drop old entries of the inbox."""
        schema = await self._reach()
        old = [each for each, entered_at in schema.inbox.items() if entered_at < before]
        for each in old:
            del schema.inbox[each]
        return len(old)

    async def _reach(self) -> Schema:
        """Return the schema. Raises StoreUnavailableError if the server is down."""
        self._alive()
        await self._database.reach(Point.PUBLISHED, self._schema.name)
        return self._schema

    def crash(self) -> None:
        """End the process: its leadership becomes free, and all its later calls fail."""
        self._dead = True
        for leadership in self._leaderships:
            leadership.drop()
        self._schema.call_next()

    async def close(self) -> None:
        """Give up the leadership."""
        self.crash()


def _refused(row_id: int, sent: Sent) -> RefusedEvent:
    envelope = sent.envelope
    refused_at = sent.refused_at or envelope.time
    return RefusedEvent(row_id, refused_at, envelope.subject, envelope.headers(), envelope.body())
