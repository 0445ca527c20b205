"""The store on PostgreSQL: ``Store`` on asyncpg.

The caller of ``services/*/main.py`` builds it with the service's own role. A leader's transaction
costs four round trips (BEGIN with the fence, the inbox, all its writes, COMMIT) and one per read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope, UndecodableError
from libs.contracts.registry import ROUTES
from libs.store import statements, sums
from libs.store.connections import Address, Connection, Pool, translated
from libs.store.core import Store
from libs.store.leader import Campaign, SqlLeadership, lead
from libs.store.rows import Batch, Key, Row, Shape
from libs.store.statements import quoted
from libs.store.sums import SpanGroup, SpanQuery
from libs.store.tables import INBOX, LEADER, OUTBOX, REFUSED, UNREFUSED, Tables
from libs.store.task_traces import TaskTraces
from libs.store.terms import Leadership, NotLeaderError, Query, RefusedEvent
from libs.store.unit import Clock, Session

T = TypeVar("T")

PRUNE_ROWS_MAX = 10_000


class _SqlSession:
    """One transaction on one connection of the pool."""

    def __init__(
        self, pool: Pool, connection: Connection, schema: str, versions: dict[int, int]
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._schema = schema
        # The version of the leader's row by epoch, while only this process can change it.
        self._versions = versions
        self._epoch = 0
        self.version = 0
        self.outbox_ids: Sequence[int] = ()

    async def begin(self, epoch: int | None) -> None:
        """Begin the transaction. With an epoch, lock the leader's row, which keeps every other
        leader out."""
        if epoch is None:
            # Snapshot isolation: writing a row fails if another process changed it after our read.
            await self._run(self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ"))
            return
        leader, self._epoch = quoted(self._schema, LEADER), epoch
        known = self._versions.get(epoch)
        if known is not None:
            # One round trip for both statements cannot take arguments; these numbers are our own.
            status = await self._run(
                self._connection.execute(
                    f"BEGIN; UPDATE {leader} SET version = {known + 1:d}"  # noqa: S608 - our names
                    f" WHERE id = 1 AND epoch = {epoch:d} AND version = {known:d}"
                )
            )
            if _count(status) == 1:
                self.version = known + 1
                return
            # Either another process leads, or the version is unexpected: read the row to find out.
            self._versions.clear()
        else:
            await self._run(self._connection.execute("BEGIN"))
        version = await self._run(
            self._connection.fetchval(
                f"UPDATE {leader} SET version = version + 1"  # noqa: S608 - our names
                " WHERE id = 1 AND epoch = $1 RETURNING version",
                epoch,
            )
        )
        if version is None:
            raise NotLeaderError(f"epoch {epoch} of {self._schema} is over")
        self.version = int(version)

    async def _run(self, step: Awaitable[T]) -> T:
        """Await one statement and translate the driver's errors into the port's."""
        try:
            return await step
        except Exception:
            with translated(self._connection):
                raise

    async def _rows(self, shape: Shape, statement: statements.Statement) -> list[Row]:
        text, arguments = statement
        records = await self._run(self._connection.fetch(text, *arguments))
        return [statements.row_of(shape, record) for record in records]

    async def get(self, shape: Shape, key: Key) -> Row | None:
        rows = await self._rows(shape, statements.get(shape, key))
        return rows[0] if rows else None

    async def load(self, shape: Shape, keys: Sequence[Key]) -> list[Row]:
        return await self._rows(shape, statements.load(shape, keys))

    async def select(self, shape: Shape, query: Query) -> list[Row]:
        return await self._rows(shape, statements.select(shape, query))

    async def span_sums(self, shape: Shape, query: SpanQuery) -> list[SpanGroup]:
        text, arguments = sums.statement(shape, query)
        records = await self._run(self._connection.fetch(text, *arguments))
        return [sums.group_of(shape, query, record) for record in records]

    async def pages(self, shape: Shape, rows_max: int) -> AsyncGenerator[list[Row]]:
        # Each table has its own cursor name, because a prepared FETCH belongs to one cursor.
        cursor = quoted(shape.table)
        text, _ = statements.select(shape, Query())
        # The text of FETCH is the same for every form of the table: drop older prepared statements.
        await self._connection.reload_schema_state()
        await self._run(self._connection.execute(f"DECLARE {cursor} NO SCROLL CURSOR FOR {text}"))
        while rows := await self._rows(shape, (f"FETCH {rows_max:d} FROM {cursor}", [])):
            yield rows
        await self._run(self._connection.execute(f"CLOSE {cursor}"))

    async def write(self, batch: Batch) -> None:
        """Run one statement, or two if a table has both deletions and rows."""
        await self._carry_out(batch, ())

    async def conclude(self, batch: Batch | None, envelopes: Sequence[Envelope]) -> None:
        events = [self._appending(envelopes)] if envelopes else []
        found = await self._carry_out(batch or Batch((), ()), events)
        if events:
            # The database numbers them in the order in which they were passed.
            self.outbox_ids = sorted(record[0] for record in found)

    async def _carry_out(self, batch: Batch, more: Sequence[statements.Statement]) -> Sequence[Any]:
        """Write the batch and run the ``more`` statements; return the rows of the last one."""
        put = {shape for shape, _ in batch.puts}
        # A new row may reuse unique values of a deleted row of its table: delete that row first.
        first = [statements.delete(*item) for item in batch.deletes if item[0] in put]
        rest = [statements.delete(*item) for item in batch.deletes if item[0] not in put]
        rest += [statements.upsert(*item) for item in batch.puts]
        found: Sequence[Any] = ()
        for parts in (first, [*rest, *more]):
            if parts:
                text, arguments = statements.together(parts)
                found = await self._run(self._connection.fetch(text, *arguments))
        return found

    async def enter(self, event_ids: Sequence[str], now: datetime) -> set[str]:
        found = await self._run(
            self._connection.fetch(
                f"INSERT INTO {quoted(self._schema, INBOX)} (event_id, seen_at)"  # noqa: S608 - our names
                " SELECT event_id, $2 FROM unnest($1::text[]) AS event_id"
                " ON CONFLICT DO NOTHING RETURNING event_id",
                list(event_ids),
                now,
            )
        )
        return {record[0] for record in found}

    def _appending(self, envelopes: Sequence[Envelope]) -> statements.Statement:
        text = (
            f"INSERT INTO {quoted(self._schema, OUTBOX)}"  # noqa: S608 - our names
            " (event_id, type, source, subject, time, traceparent, body, created_at)"
            " SELECT *, $8::timestamptz FROM unnest($1::text[], $2::text[], $3::text[],"
            " $4::text[], $5::timestamptz[], $6::text[], $7::text[]) RETURNING id"
        )
        return text, [
            [each.id for each in envelopes],
            [ROUTES[type(each.message)].type_name for each in envelopes],
            [each.source for each in envelopes],
            [each.subject for each in envelopes],
            [each.time for each in envelopes],
            [each.traceparent for each in envelopes],
            [each.body().decode() for each in envelopes],
            envelopes[0].time,
        ]

    async def commit(self) -> None:
        done = False
        if self.version:
            # Until the answer arrives, the stored version is unknown.
            self._versions.clear()
        try:
            status = await self._run(self._connection.execute("COMMIT"))
            # PostgreSQL answers COMMIT with ROLLBACK if the transaction failed before.
            done = status == "COMMIT"
            if not done:
                raise AssertionError(f"COMMIT was answered with {status}")
            if self.version:
                self._versions[self._epoch] = self.version
        finally:
            self._pool.release(self._connection, sound=done)

    async def rollback(self) -> None:
        """Roll back if the connection still works; otherwise drop it."""
        done = False
        try:
            if not self._connection.is_closed() and not _cancelled():
                await self._run(self._connection.execute("ROLLBACK"))
                done = True
        except Exception:  # noqa: BLE001 - on any error the connection is dropped below
            done = False
        finally:
            self._pool.release(self._connection, sound=done)


def _cancelled() -> bool:
    """True while the current task is being cancelled: no time for another round trip."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class SqlStore(Store):
    """``Store`` on PostgreSQL."""

    def __init__(
        self,
        address: Address,
        tables: Tables,
        *,
        clock: Clock,
        source: str,
        new_id: Callable[[], str],
        traceparent: Callable[[], str] = str,
        traces: TaskTraces | None = None,
        leader_name: str = "",
        leader_poll_s: float = 0.5,
        leader_probe_s: float = 1.0,
    ) -> None:
        super().__init__(
            tables,
            clock=clock,
            source=source,
            new_id=new_id,
            traceparent=traceparent,
            traces=traces,
        )
        self._pool = Pool(address)
        self._campaign = Campaign(
            address, tables.schema, leader_name or source, leader_poll_s, leader_probe_s
        )
        self._leaderships: list[SqlLeadership] = []
        self._closing = asyncio.Event()
        self._connected = False
        self._outbox = quoted(tables.schema, OUTBOX)
        self._leader = quoted(tables.schema, LEADER)
        self._inbox = quoted(tables.schema, INBOX)
        self._bus_server = ""
        self._versions: dict[int, int] = {}

    async def _begin(self, epoch: int | None) -> Session:
        connection = await self._pool.acquire()
        session = _SqlSession(self._pool, connection, self._tables.schema, self._versions)
        try:
            await session.begin(epoch)
        except BaseException:
            await session.rollback()
            raise
        return session

    @property
    def connected(self) -> bool:
        """False while the database does not answer the connection that leads or waits to lead."""
        return self._connected

    def _set_connected(self, connected: bool) -> None:
        self._connected = connected

    async def _lead(self) -> Leadership:
        leadership = await lead(self._campaign, self._closing, self._set_connected)
        self._leaderships = [leadership]
        return leadership

    async def _query_outgoing(self, limit: int) -> list[tuple[int, Envelope]]:
        """Find unpublished rows by their NULL, never by a moving position in the ids: that would
        skip a slower transaction with a lower id."""
        while True:
            records = await self._page(UNREFUSED, 0, limit)
            rows: list[tuple[int, Envelope]] = []
            unreadable: list[int] = []
            for record in records:
                try:
                    rows.append((record["id"], Envelope.read_stored(*_on_the_bus(record))))
                except UndecodableError:
                    unreadable.append(record["id"])
            if not unreadable:
                return rows
            # If the process dies here, the next query finds these rows again.
            await self._mark_refused(unreadable)

    async def _page(self, which: str, after: int, limit: int) -> Sequence[Any]:
        """Return rows of the outbox, oldest first: at most ``limit``, and no further ones once
        their bodies reach ``BATCH_BYTES_MAX``. The database adds up the lengths without reading the
        bodies."""
        columns = "id, event_id, type, source, subject, time, traceparent, body, refused_at"
        async with self._pool.use() as connection:
            return await connection.fetch(
                f"SELECT {columns} FROM (SELECT *,"  # noqa: S608 - our names
                " sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS before"
                f" FROM (SELECT {columns} FROM {self._outbox}"
                f" WHERE {which} AND id > $1 ORDER BY id LIMIT $2) AS page)"
                " AS measured WHERE before < $3 ORDER BY id",
                after,
                limit,
                BATCH_BYTES_MAX,
            )

    async def _mark_refused(self, row_ids: Sequence[int]) -> None:
        async with self._pool.use() as connection:
            await connection.execute(
                f"UPDATE {self._outbox} SET refused_at = $2"  # noqa: S608 - our names
                f" WHERE id = ANY($1::bigint[]) AND {UNREFUSED}",
                list(row_ids),
                self._clock.now(),
            )

    async def refused(self, after: int, limit: int) -> list[RefusedEvent]:
        """Return refused events, oldest first."""
        return [
            RefusedEvent(
                record["id"], record["refused_at"], record["subject"], *_on_the_bus(record)
            )
            for record in await self._page(REFUSED, after, limit)
        ]

    async def count_refused(self) -> int:
        """Count the refused events."""
        async with self._pool.use() as connection:
            return await connection.fetchval(
                f"SELECT count(*) FROM {self._outbox} WHERE {REFUSED}"  # noqa: S608 - our names
            )

    async def count_outgoing(self, most: int) -> int:
        """Count the unpublished events that are not refused."""
        async with self._pool.use() as connection:
            return await connection.fetchval(
                "SELECT count(*) FROM"  # noqa: S608 - our names
                f" (SELECT 1 FROM {self._outbox} WHERE {UNREFUSED} LIMIT $1) AS counted",
                most,
            )

    async def _mark_published(self, row_ids: Sequence[int]) -> None:
        """Mark events as published without waiting for the disk. If a crash loses this write, the
        event is published again, and the bus and the inboxes detect the duplicate."""
        async with self._pool.use() as connection:
            await connection.fetch(
                "WITH at_ease AS MATERIALIZED"  # noqa: S608 - our names
                " (SELECT set_config('synchronous_commit', 'off', true))"
                f" UPDATE {self._outbox} SET published_at = $2, refused_at = NULL,"
                f" period = coalesce((SELECT period FROM {self._leader}), 0) FROM at_ease"
                " WHERE id = ANY($1::bigint[])",
                list(row_ids),
                self._clock.now(),
            )

    async def meet_bus_server(self, server_id: str, periods: int) -> int:
        """Store the bus server; publish the last periods again if it has changed."""
        if not server_id or server_id == self._bus_server:
            return 0
        async with self._pool.use() as connection:
            count = await connection.fetchval(
                f"WITH met AS (UPDATE {self._leader} SET bus_server = $1"  # noqa: S608 - our names
                " WHERE bus_server <> $1 RETURNING period),"
                f" again AS (UPDATE {self._outbox} SET published_at = NULL"
                " WHERE published_at IS NOT NULL"
                " AND period >= (SELECT period FROM met) - $2::bigint RETURNING 1)"
                " SELECT count(*) FROM again",
                server_id,
                periods,
            )
        self._bus_server = server_id
        if count:
            self.outbox_changed.set()
        return int(count)

    async def next_period(self) -> None:
        """Begin the next period of the outbox."""
        async with self._pool.use() as connection:
            await connection.execute(f"UPDATE {self._leader} SET period = period + 1")  # noqa: S608 - our names

    async def prune_outbox(self, periods: int) -> int:
        """Drop old published events, a bounded number at a time."""
        # The oldest rows have the lowest ids. Refused rows may be many, so the query skips them.
        # Other unpublished rows are few, and a page without an old row ends the search.
        return await self._delete_all(
            f"DELETE FROM {self._outbox} WHERE published_at IS NOT NULL"  # noqa: S608 - our names
            f" AND period < (SELECT period FROM {self._leader}) - $1::bigint AND id = ANY(ARRAY("
            f"SELECT id FROM {self._outbox} WHERE refused_at IS NULL"
            f" ORDER BY id LIMIT {PRUNE_ROWS_MAX}))",
            periods,
        )

    async def oldest_seen(self) -> datetime | None:
        """Return when the oldest event of the inbox was entered."""
        async with self._pool.use() as connection:
            return await connection.fetchval(
                f"SELECT seen_at FROM {self._inbox} ORDER BY seen_at LIMIT 1"  # noqa: S608 - our names
            )

    async def prune_inbox(self, before: datetime) -> int:
        """Drop old entries of the inbox, a bounded number at a time."""
        return await self._delete_all(
            f"DELETE FROM {self._inbox} WHERE event_id = ANY(ARRAY("  # noqa: S608 - our names
            f"SELECT event_id FROM {self._inbox} WHERE seen_at < $1"
            f" ORDER BY seen_at LIMIT {PRUNE_ROWS_MAX}))",
            before,
        )

    async def _delete_all(self, delete: str, *arguments: object) -> int:
        """Repeat a bounded deletion until no row is left; each runs in its own transaction."""
        total, count = 0, -1
        while count:
            async with self._pool.use() as connection:
                count = _count(await connection.execute(delete, *arguments))
            total += count
        return total

    async def close(self) -> None:
        """Give up the leadership and close the connections."""
        self._closing.set()
        for leadership in self._leaderships:
            await leadership.release()
        await self._pool.close()


def _count(status: str) -> int:
    """The number of rows in a command's status, as in ``DELETE 3``."""
    return int(status.rpartition(" ")[2])


def _on_the_bus(record: Any) -> tuple[dict[str, str], bytes]:  # noqa: ANN401 - the driver's record
    """Return the headers and the body of an outbox row as published, the same at each attempt."""
    headers = {
        "ce-id": record["event_id"],
        "ce-type": record["type"],
        "ce-source": record["source"],
        "ce-time": record["time"].isoformat(),
        "traceparent": record["traceparent"],
    }
    return headers, record["body"].encode()


__all__ = ["Address", "SqlStore"]
