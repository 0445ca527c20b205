"""The store's errors, conditions and values. Services import them from ``port``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol

from libs.contracts.envelope import BATCH_BYTES_MAX, Envelope


class StoreUnavailableError(Exception):
    """The database cannot be reached now. The transaction did not happen, or its outcome is
    unknown."""


class UnfitValueError(Exception):
    """The database cannot hold a value: a text with NUL, a number or a time out of range."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A stored row with a column that cannot be decoded, because it was changed by hand or written
    by another version."""

    kind: type[object]
    # The primary key in the database's encoding.
    key: tuple[object, ...]
    # Names the column without its value, which may be secret.
    problem: str

    @property
    def id(self) -> str:
        """The primary key as text."""
        return "/".join(str(part) for part in self.key)

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.id}: {self.problem}"


class UnreadableRowError(Exception):
    """A row that was requested by its key is unreadable. No other row is affected."""

    def __init__(self, row: UnreadableRow) -> None:
        super().__init__(str(row))
        self.row = row


class DatabaseFaultError(Exception):
    """The database rejected a statement, and the cause is neither known to be temporary nor known
    to lie in the rows: a missing table or permission, an invalid statement. Nothing was stored."""


class EventTooLargeError(ValueError):
    """An event is larger than the bus accepts; its transaction must not commit."""

    def __init__(self, subject: str, size: int, size_max: int) -> None:
        super().__init__(f"{subject}: {size} bytes; an event has at most {size_max}")
        self.size = size


class ConflictError(Exception):
    """A unique index, a check or a concurrent transaction rejected the rows. Nothing was stored."""


class TermOverError(Exception):
    """This process may no longer lead: all work of the leader has to end."""


class NotLeaderError(TermOverError):
    """Another process leads this service now. Nothing was stored."""


class ObserverError(TermOverError):
    """A transaction was committed, but an observer that updates this process's memory failed.
    Memory and rows may differ now. A new term loads the rows again and makes them equal."""


class Op(Enum):
    """The comparisons that a condition may use."""

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
    # Served by an index on ``reverse(column)``.
    SUFFIX = "suffix"
    # The JSON object in the column contains these key/value pairs.
    CONTAINS = "contains"
    # It does not contain all of them.
    LACKS = "lacks"
    # The JSON object in the column has this key.
    HAS_KEY = "has key"


@dataclass(frozen=True, slots=True)
class Where:
    """One condition on one column. The conditions of a select are joined by AND."""

    column: str
    op: Op
    value: object = None


@dataclass(frozen=True, slots=True)
class Order:
    """Sort by a column."""

    column: str
    descending: bool = False


class Query(NamedTuple):
    """A selection of a table's rows; ties are in the order of the primary key."""

    where: Sequence[Where] = ()
    order_by: Sequence[Order] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of one committed transaction: the new rows, and the keys of deleted rows."""

    put: tuple[object, ...]
    deleted: tuple[tuple[type[object], tuple[object, ...]], ...]


Observer = Callable[[Delta], None]


def is_full(rows: Sequence[tuple[int, Envelope]], limit: int) -> bool:
    """True if more events may wait to be published than ``outgoing`` returned."""
    return len(rows) == limit or sum(len(each.body()) for _, each in rows) >= BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event of the outbox that the bus refused, or that cannot be read."""

    row_id: int
    refused_at: datetime
    subject: str
    headers: Mapping[str, str]
    body: bytes

    def envelope(self) -> Envelope:
        """Return the event. Raises UndecodableError if this code cannot have written it."""
        return Envelope.read_stored(self.headers, self.body)


class Leadership(Protocol):
    """The right to act for a service until it is lost."""

    @property
    def epoch(self) -> int:
        """The epoch, which grows with each leader; every leader's transaction checks it."""
        ...

    async def lost(self) -> None:
        """Return when the leadership is gone (lock lost, connection lost). Raises ObserverError
        when this process must give it up because its memory no longer matches the rows."""
        ...

    async def release(self) -> None:
        """Give up the leadership, so that another process can lead at once."""
        ...
