"""The store's vocabulary: its errors, conditions and values. Services import it from ``port``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope


class StoreUnavailableError(Exception):
    """The database cannot be reached now; the transaction did not happen or is unknown."""


class UnfitValueError(Exception):
    """The database cannot hold a value: NUL in a text, a number or a moment out of range."""


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


class Query(NamedTuple):
    """Which rows of a table, ties in the order of the primary key."""

    where: Sequence[Where] = ()
    order_by: Sequence[Order] = ()
    limit: int | None = None
    offset: int = 0


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
