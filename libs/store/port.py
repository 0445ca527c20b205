"""What a service may do with its tables. Adapters: ``sql`` (PostgreSQL) and ``memory``.

Rows are the service's own frozen dataclasses; the table classes of ``tables.py`` never travel.
``tests/contract/test_store.py`` holds both adapters to this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol, TypeVar

from libs.contracts.base import Message
from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope

R = TypeVar("R")


class StoreUnavailableError(Exception):
    """The database cannot be reached now; the transaction did not happen or is unknown."""


class UnfitValueError(Exception):
    """The database cannot hold a value: NUL in a text, a number or a time out of range."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A stored row with a column that cannot be decoded: changed by hand, or by another version."""

    kind: type[object]
    # The primary key as the database has it.
    key: tuple[object, ...]
    # Which column, without its value: it may hold secrets.
    problem: str

    @property
    def id(self) -> str:
        """The primary key as text."""
        return "/".join(str(part) for part in self.key)

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.id}: {self.problem}"


class UnreadableRowError(Exception):
    """A row that was asked for by its key is unreadable. Nothing but that row is affected."""

    def __init__(self, row: UnreadableRow) -> None:
        super().__init__(str(row))
        self.row = row


class DatabaseFaultError(Exception):
    """The database refused for a reason that is not known to pass and not known to lie in the rows:
    a missing table or right, a statement that it does not take. Nothing was stored."""


class EventTooLargeError(ValueError):
    """An event is larger than the bus takes; the transaction that would emit it must not commit."""

    def __init__(self, subject: str, size: int, size_max: int) -> None:
        super().__init__(f"{subject}: {size} bytes; an event has at most {size_max}")
        self.size = size


class ConflictError(Exception):
    """The database refused the rows: a unique index or a check; nothing was stored."""


class TermOverError(Exception):
    """This process may not lead on: all that the leader does has to end."""


class NotLeaderError(TermOverError):
    """Another process leads this service now; nothing was stored."""


class ObserverError(TermOverError):
    """A transaction was committed, and what follows the rows in this process's memory failed on
    it. Memory and rows may differ now: a new term, which loads the rows again, makes them equal.
    """


class Op(Enum):
    """Comparisons a condition may use."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "in"
    IS_NULL = "is null"
    NOT_NULL = "is not null"
    PREFIX = "prefix"
    # Found by an index on ``reverse(column)``.
    SUFFIX = "suffix"
    # JSON object column contains these key/value pairs.
    CONTAINS = "contains"


@dataclass(frozen=True, slots=True)
class Where:
    """One condition on one column; conditions of a select are joined by AND."""

    column: str
    op: Op
    value: object = None


@dataclass(frozen=True, slots=True)
class Order:
    """Sort by a column."""

    column: str
    descending: bool = False


class Tx(Protocol):
    """One transaction: reads see its own writes, everything lands at once or not at all."""

    async def get(self, kind: type[R], *key: object) -> R | None:
        """The row with this primary key, or None. UnreadableRowError if it cannot be decoded: it
        exists, so it must not be taken for new."""
        ...

    async def load(self, kind: type[object], *keys: tuple[object, ...]) -> None:
        """Read the rows with these primary keys at once: afterwards ``get`` has them, or that
        there are none, without asking again."""
        ...

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
        ...

    @property
    def unreadable(self) -> Sequence[UnreadableRow]:
        """The rows that this transaction's selects have left out."""
        ...

    def put(self, *rows: object) -> None:
        """Insert rows, or replace those with the same primary key."""
        ...

    def delete(self, kind: type[object], *key: object) -> None:
        """Remove the row with this primary key, if there is one."""
        ...

    def emit(self, message: Message) -> None:
        """Put an event in the outbox; it is published after the commit, at least once.
        EventTooLargeError if the bus could never take it."""
        ...

    async def unseen(self, event_ids: Sequence[str]) -> set[str]:
        """Enter event ids in the inbox; returns those that were not there before."""
        ...

    @property
    def memo(self) -> dict[str, Any]:
        """For what a service has found out for the rest of this transaction; kept nowhere."""
        ...

    @property
    def now(self) -> datetime:
        """The service's clock when the transaction began (UTC)."""
        ...

    @property
    def version(self) -> int:
        """With a leader's transaction: the number of leader's transactions so far, this one
        included. 0 without one."""
        ...


@dataclass(frozen=True, slots=True)
class Delta:
    """What one committed transaction changed: rows as they are now, and keys that are gone."""

    put: tuple[object, ...]
    deleted: tuple[tuple[type[object], tuple[object, ...]], ...]


Observer = Callable[[Delta], None]


def is_full(rows: Sequence[tuple[int, Envelope]], limit: int) -> bool:
    """True if there may be more events to publish than ``outgoing`` returned."""
    return len(rows) == limit or sum(len(each.body()) for _, each in rows) >= BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event of the outbox that did not go: the bus refuses it, or it cannot be read."""

    row_id: int
    refused_at: datetime
    subject: str
    headers: Mapping[str, str]
    body: bytes

    def envelope(self) -> Envelope:
        """The event; UndecodableError if no version of this code could have written it."""
        return Envelope.read_stored(self.headers, self.body)


class Leadership(Protocol):
    """The right to act for a service, until it is lost."""

    @property
    def epoch(self) -> int:
        """Grows with each leader; every leader's transaction is fenced by it."""
        ...

    async def lost(self) -> None:
        """Returns when the leadership is gone (lock lost, connection lost). Raises ObserverError
        when this process must give it up, because its memory does not follow the rows."""
        ...

    async def release(self) -> None:
        """Give it up, so that another process can lead at once."""
        ...


class Store(Protocol):
    """One service's schema under that service's own role."""

    def transaction(self, *, epoch: int | None = None) -> AbstractAsyncContextManager[Tx]:
        """Open a transaction; commits on leaving, rolls back on an exception. With an epoch it
        is a leader's: NotLeaderError if another leads. Raises ConflictError, DatabaseFaultError and
        StoreUnavailableError; a unique conflict may only show on leaving. ObserverError if an
        observer failed, in this transaction (which is committed) or before in this term."""
        ...

    @property
    def connected(self) -> bool:
        """False while the database is out of reach, as far as leading or standing by shows it."""
        ...

    @property
    def in_doubt(self) -> bool:
        """True while the outcome of a leader's commit is not known, because its answer was lost.
        The next leader's transaction finds out: if the commit did take effect, the observers are
        called then, and that transaction raises StoreUnavailableError."""
        ...

    async def lead(self) -> Leadership:
        """Wait until this process leads the service (one at a time), with a higher epoch."""
        ...

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` after each of this store's commits, with what changed, in order. If it
        raises, the transaction raises ObserverError and the leader's term is over."""
        ...

    async def make_resident(self, *kinds: type[object]) -> None:
        """Load these tables into memory (leader only: it alone writes them). From then on reads
        of them inside leader's transactions are served from memory. Rows that cannot be decoded
        are reported and left out: see ``unreadable``."""
        ...

    def unreadable(self, kind: type[object]) -> Sequence[UnreadableRow]:
        """The rows of a resident table that could not be decoded and were not written since.
        ``get`` raises UnreadableRowError for them; what concerns them must be left alone."""
        ...

    def on_unreadable(self, report: Callable[[UnreadableRow], None]) -> None:
        """Call ``report`` for each unreadable row that is met, each time."""
        ...

    def resident(self, kind: type[R]) -> dict[object, R]:
        """The rows of a resident table by primary key (a tuple if it has several columns).
        Never change it; it is the table."""
        ...

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:
        """Unpublished events of the outbox with their row ids, oldest first: at most ``limit``, and
        no more once they have reached ``BATCH_BYTES_MAX`` (``is_full``). Without ``query`` only
        those that this process has committed since its first query, from memory: events that other
        processes committed, or whose commit is in doubt, show at the next query. Refused ones are
        left out, and one that cannot be read becomes a refused one."""
        ...

    async def published(self, row_ids: Sequence[int]) -> None:
        """Mark events of the outbox as published; they are not refused any more."""
        ...

    async def refuse(self, row_ids: Sequence[int]) -> None:
        """Note that the bus refuses these events: ``outgoing`` leaves them out from now on."""
        ...

    async def refused(self, after: int, limit: int) -> list[RefusedEvent]:
        """Refused events with ids behind ``after``, in the order of their ids: at most ``limit``,
        and no more once they have reached ``BATCH_BYTES_MAX``."""
        ...

    async def count_refused(self) -> int:
        """How many events are refused."""
        ...

    async def meet_bus_server(self, server_id: str, periods: int) -> int:
        """Note which bus server the outbox is published to. If it is not the one noted before,
        the events of the current period and of so many before it are made unpublished again,
        because the old server may have died before its disk had them; returns how many. Costs
        nothing while the server is the one this process has noted last."""
        ...

    async def next_period(self) -> None:
        """Begin the next period of the outbox. Events belong to the period in which they were
        published; periods are numbered, so no clock decides what is published again or dropped."""
        ...

    async def prune_outbox(self, periods: int) -> int:
        """Drop published events that are older than the current period and so many before it;
        returns how many."""
        ...

    async def oldest_seen(self) -> datetime | None:
        """When the event was entered that is in the inbox for the longest time."""
        ...

    async def prune_inbox(self, before: datetime) -> int:
        """Drop the inbox's entries from before a time; returns how many."""
        ...

    @property
    def outbox_changed(self) -> asyncio.Event:
        """Set after a commit that emitted something; the relay clears it and waits on it."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
