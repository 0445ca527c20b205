"""The memory store's server: schemas that outlive the processes that use them, and their faults.

``memory`` uses it. The simulation holds one ``MemoryDatabase`` and injects faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from random import Random
from typing import Any

from libs.contracts.envelope import Envelope
from libs.store.rows import Key, Row, Shape, Unique
from libs.store.tables import Tables
from libs.store.terms import ConflictError, StoreUnavailableError, UnreadableRow


class Point(Enum):
    """The points at which a fault may occur."""

    BEGIN = "begin"
    # Nothing of the transaction is kept.
    BEFORE_COMMIT = "before_commit"
    # Everything is kept, but the caller gets no answer.
    AFTER_COMMIT = "after_commit"
    OUTGOING = "outgoing"
    # Between publishing and marking as published.
    PUBLISHED = "published"
    # Between a refusal by the bus and marking the event as refused.
    REFUSED = "refused"
    LEAD = "lead"


# Called with the point and the schema's name; it waits, returns, or raises StoreUnavailableError.
Fault = Callable[[Point, str], Awaitable[None]]


async def no_fault(point: Point, schema: str) -> None:
    """Inject no fault."""
    del point, schema


@dataclass
class Table:
    """One table: rows by primary key, and its unique indexes."""

    shape: Shape
    rows: dict[Key, Row] = field(default_factory=dict)
    indexes: dict[str, dict[tuple[object, ...], Key]] = field(default_factory=dict)
    # Rows that cannot be decoded until they are written again, with the reason.
    broken: dict[Key, str] = field(default_factory=dict[Key, str])

    def read(self, key: Key) -> Row | None:
        """Return one row as a client reads it."""
        row = self.rows.get(key)
        if row is None or key not in self.broken:
            return row
        return UnreadableRow(self.shape.kind, self.shape.encoded_key(key), self.broken[key])

    def decoded(self, rows: Iterable[Row]) -> list[Row]:
        """Return several of its rows as a client reads them."""
        if not self.broken:
            return list(rows)
        return [self.read(self.shape.key_of(row)) for row in rows]

    def replace(self, key: Key, row: Row | None) -> Row | None:
        """Check every constraint, then set or remove a row; return the previous row."""
        if row is not None:
            self._refuse(key, row)
        return self.set(key, row)

    def set(self, key: Key, row: Row | None) -> Row | None:
        """Set or remove a row and its index entries; return the previous row."""
        old = self.rows.get(key)
        self.broken.pop(key, None)
        for unique in self.shape.uniques:
            index = self.indexes.setdefault(unique.name, {})
            if old is not None and (was := unique.values(old)) is not None:
                index.pop(was, None)
            if row is not None and (values := unique.values(row)) is not None:
                index[values] = key
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row
        return old

    def _refuse(self, key: Key, row: Row) -> None:
        """Raise ConflictError, with the name of the constraint, if the row violates one."""
        for column in self.shape.columns:
            column.encoded(getattr(row, column.name))
        for check in self.shape.checks:
            if not check.holds(row):
                raise ConflictError(check.name)
        for unique in self.shape.uniques:
            if self._taken(unique, key, row):
                raise ConflictError(unique.name)

    def _taken(self, unique: Unique, key: Key, row: Row) -> bool:
        values = unique.values(row)
        if values is None:
            return False
        return self.indexes.get(unique.name, {}).get(values, key) != key


@dataclass(frozen=True, slots=True)
class Sent:
    """One row of the outbox."""

    envelope: Envelope
    # The period in which it was published; None if it was not.
    period: int | None = None
    refused_at: datetime | None = None


class Schema:
    """All data of one service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: dict[str, Table] = {}
        self.inbox: dict[str, datetime] = {}
        self.outbox: dict[int, Sent] = {}
        self.unpublished: dict[int, None] = {}
        self.outbox_id = 0
        self.period = 0
        self.epoch = 0
        self.version = 0
        self.bus_server = ""
        self.turn = asyncio.Lock()
        self.leader: MemoryLeadership | None = None
        self.waiting: list[asyncio.Future[None]] = []

    def table(self, shape: Shape) -> Table:
        """Return the table of a kind; rows survive a new handle with newly declared shapes."""
        found = self.tables.get(shape.table)
        if found is None:
            found = self.tables[shape.table] = Table(shape)
        return found

    def call_next(self) -> None:
        """Notify the processes that wait for the leadership, in the order of their arrival."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class BadCommits:
    """Makes a schema's commits fail for a while, as with a held lock or a hanging disk: some fail
    after a wait, and some take effect but get no answer."""

    rng: Random
    share: float
    wait_seconds: float
    wait: Callable[[float], Awaitable[None]]

    async def reach(self, point: Point) -> None:
        """Wait and raise StoreUnavailableError for a share of the commits; called at each point."""
        if point not in {Point.BEFORE_COMMIT, Point.AFTER_COMMIT}:
            return
        # Half of the failures happen at each of the two points.
        if self.rng.random() < self.share / 2:
            await self.wait(self.rng.uniform(0.0, self.wait_seconds))
            raise StoreUnavailableError(f"the commit was not answered ({point.value})")


class MemoryDatabase:
    """The server: schemas by name, and the faults it may have."""

    def __init__(self) -> None:
        self.fault: Fault = no_fault
        # By schema, while the fault lasts.
        self.bad_commits: dict[str, BadCommits] = {}
        # Counts the starts; a transaction ends with the start in which it began.
        self.starts = 1
        self._down = False
        self._schemas: dict[str, Schema] = {}

    @property
    def down(self) -> bool:
        """True while the server is stopped."""
        return self._down

    def schema(self, name: str) -> Schema:
        """Return one service's schema, which is made when it is first requested."""
        if name not in self._schemas:
            self._schemas[name] = Schema(name)
        return self._schemas[name]

    def stop(self, *, notice_seconds: float = 0.0) -> None:
        """Stop the server: open transactions and all leaderships are lost. The leaders notice it
        after ``notice_seconds``."""
        self._down = True
        for name in self._schemas:
            self.cut_leader(name, notice_seconds=notice_seconds)

    def start(self) -> None:
        """Start the server again, with everything that was committed."""
        if not self._down:
            return
        self._down = False
        self.starts += 1
        for schema in self._schemas.values():
            schema.call_next()

    def cut_leader(self, schema: str, *, notice_seconds: float = 0.0) -> None:
        """Break the connection that holds a service's leadership. The server frees the lock at
        once, so another process may lead before the old leader notices anything."""
        leader = self.schema(schema).leader
        if leader is not None:
            leader.drop(notice_seconds=notice_seconds)

    def rows(self, tables: Tables, kind: type[Any]) -> dict[Key, Row]:
        """Return a copy of the committed rows, for checkers."""
        return dict(self.schema(tables.schema).table(tables.shape(kind)).rows)

    def break_row(self, tables: Tables, kind: type[Any], *key: object, column: str) -> None:
        """Make a row undecodable, as if a person had changed a column by hand."""
        shape = tables.shape(kind)
        table = self.schema(tables.schema).table(shape)
        found = shape.key_from(key)
        assert found in table.rows, f"{kind.__name__} {key} is not there"
        table.broken[found] = f"column {shape.column(column).name} cannot be decoded"

    async def reach(self, point: Point, schema: str) -> None:
        """Simulate a request to the server, with its faults."""
        if self._down:
            raise StoreUnavailableError("the database is stopped")
        await self.fault(point, schema)
        if schema in self.bad_commits:
            await self.bad_commits[schema].reach(point)
        if self._down:
            raise StoreUnavailableError("the database is stopped")


class MemoryLeadership:
    """A leadership that lasts until ``drop`` is called."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.epoch = schema.epoch
        self._gone = asyncio.Event()

    async def lost(self) -> None:
        """Return when the leadership is gone."""
        await self._gone.wait()

    async def release(self) -> None:
        """Give up the leadership at once."""
        self.drop()

    def drop(self, *, notice_seconds: float = 0.0) -> None:
        """Break the connection, so that the next process may lead. The process that held the
        leadership notices after ``notice_seconds``, as with a network that drops packets; until
        then only the epoch rejects its transactions."""
        if notice_seconds > 0:
            asyncio.get_running_loop().call_later(notice_seconds, self._gone.set)
        else:
            self._gone.set()
        if self._schema.leader is self:
            self._schema.leader = None
            self._schema.call_next()
