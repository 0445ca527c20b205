"""Rows as values: their shape, and conditions, orders and unique indexes implemented in Python.

Both adapters use it, ``memory`` for everything and ``sql`` for resident tables, so the two cannot
differ. Where Python and SQL differ (NULL), this module follows SQL.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, cast

from libs.store.retention import Retention
from libs.store.terms import Op, Query, Where

Row = Any
Key = object
Encode = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its PostgreSQL type, the Python types it accepts, and its encoding."""

    name: str
    sql_type: str
    nullable: bool
    # Python types of a value; empty where ``encode`` validates the value.
    accepts: tuple[type, ...] = ()
    encode: Encode | None = None
    decode: Callable[[Any], object] | None = None
    # The exact types of values that need no further check.
    exact_types: frozenset[type] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        exact_types = frozenset(self.accepts) - {datetime}
        object.__setattr__(self, "exact_types", exact_types)

    def encoded(self, value: object) -> object:
        """Return the value as the database driver accepts it."""
        return value if value is None or self.encode is None else self.encode(value)

    def check(self, value: object) -> None:
        """Raise TypeError if the column cannot hold this value."""
        if value is None:
            if not self.nullable:
                raise TypeError(f"{self.name} is None, but its column is not nullable")
            return
        if self.accepts and (type(value) not in self.accepts) and not self._subtype(value):
            raise TypeError(f"{self.name} is {value!r}, but its column is {self.sql_type}")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise TypeError(f"{self.name} is {value!r}: a time without a zone; give it in UTC")

    def _subtype(self, value: object) -> bool:
        """Return True for an instance of a subclass of an accepted type. A bool is no int here."""
        return isinstance(value, self.accepts) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique constraint. With ``where`` (and the same condition as ``sql``) it is an index over
    the rows that meet the condition."""

    name: str
    columns: tuple[str, ...]
    where: Callable[[Row], bool] | None = None
    sql: str | None = None

    def values(self, row: Row) -> tuple[object, ...] | None:
        """Return the values that must be unique; None if the index does not contain the row, for
        example because of a NULL."""
        if self.where is not None and not self.where(row):
            return None
        found = tuple(plain(getattr(row, name)) for name in self.columns)
        return None if any(value is None for value in found) else found


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint, in Python and in SQL."""

    name: str
    holds: Callable[[Row], bool]
    sql: str


@dataclass(frozen=True, slots=True)
class Index:
    """An index over columns or expressions, with ``where`` over some rows. Only SQL uses it."""

    name: str
    columns: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """The table of one kind of rows; one instance for each kind, compared by identity."""

    kind: type[Any]
    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    uniques: tuple[Unique, ...] = ()
    checks: tuple[Check, ...] = ()
    indexes: tuple[Index, ...] = ()
    # True if the newest rows stay in the leader's memory.
    recent: bool = False
    # What bounds the table; every table of a service has one.
    retention: Retention | None = None
    by_name: Mapping[str, Column] = field(init=False)
    # The primary key of a row: a value, or a tuple if there are several columns.
    key_of: Callable[[Row], Key] = field(init=False)
    # All values of a row, in the order of the columns.
    values_of: Callable[[Row], tuple[object, ...]] = field(init=False)
    # The sort key for the order of the primary key.
    order_of: Callable[[Row], Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values_of", _values_of([each.name for each in self.columns]))
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
        object.__setattr__(self, "key_of", attrgetter(*self.key))
        bare = all(self.by_name[name].encode is None for name in self.key)
        object.__setattr__(self, "order_of", self.key_of if bare else self._plain_key)

    def _plain_key(self, row: Row) -> tuple[object, ...]:
        return tuple(plain(part) for part in self.key_parts(self.key_of(row)))

    def key_from(self, parts: tuple[object, ...]) -> Key:
        """Return the key for ``get(kind, *parts)``. TypeError if a part is missing."""
        if len(parts) != len(self.key):
            raise TypeError(f"{self.kind.__name__} has the key {self.key}, not {parts!r}")
        return parts[0] if len(parts) == 1 else parts

    def key_parts(self, key: Key) -> tuple[object, ...]:
        """Return the parts of a key, as passed to ``key_from``."""
        return (key,) if len(self.key) == 1 else cast("tuple[object, ...]", key)

    def encoded_key(self, key: Key) -> tuple[object, ...]:
        """Return a primary key in the database's encoding."""
        parts = zip(self.key, self.key_parts(key), strict=True)
        return tuple(self.column(name).encoded(part) for name, part in parts)

    def column(self, name: str) -> Column:
        """Return the column with this name. Raises ValueError if there is none."""
        try:
            return self.by_name[name]
        except KeyError:
            raise ValueError(f"{self.kind.__name__} has no column {name!r}") from None

    def check(self, row: Row) -> None:
        """Raise TypeError, with the name of the field, if a field does not fit its column."""
        for column, value in zip(self.columns, self.values_of(row), strict=True):
            # A fast path: nearly all values have the exact type of their column.
            if type(value) in column.exact_types:
                continue
            try:
                column.check(value)
            except TypeError as error:
                raise TypeError(f"{self.kind.__name__}: {error}") from None


def _values_of(names: Sequence[str]) -> Callable[[Row], tuple[object, ...]]:
    """Return a function that reads these fields as a tuple, even if there is only one."""
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda row: (read(row),)


def plain(value: object) -> Any:  # noqa: ANN401 - comparable with values of its type
    """Return the value as the database compares it: the value of an enum member."""
    return value.value if isinstance(value, Enum) else value


def checked(shape: Shape, query: Query) -> None:
    """Raise ValueError if a condition or an order is invalid for this kind of rows."""
    for order in query.order_by:
        shape.column(order.column)
    for condition in query.where:
        shape.column(condition.column)
        bare = condition.op in (Op.IS_NULL, Op.NOT_NULL)
        if not bare and condition.value is None:
            raise ValueError(f"{condition.column} {condition.op.value} None: use Op.IS_NULL")


def select(shape: Shape, rows: Iterable[Row], query: Query) -> list[Row]:
    """Filter, sort and limit rows as the SQL of ``statements`` does, with ties by primary key."""
    found = rows
    for item in query.where:
        read = attrgetter(item.column)
        if item.op is Op.EQ and type(item.value) in shape.column(item.column).exact_types:
            found = [row for row in found if read(row) == item.value]
        else:
            test = _test(shape, item)
            found = [row for row in found if test(read(row))]
    found = sorted(found, key=shape.order_of)
    for order in reversed(query.order_by):
        found.sort(key=_sort_key(order.column), reverse=order.descending)
    return found[query.offset : None if query.limit is None else query.offset + query.limit]


def _sort_key(column: str) -> Callable[[Row], tuple[bool, Any]]:
    """Return a sort key with NULLs last in ascending and first in descending order, as in
    PostgreSQL."""

    def key(row: Row) -> tuple[bool, Any]:
        value = plain(getattr(row, column))
        return (value is None, value)

    return key


_COMPARE: Mapping[Op, Callable[[Any, Any], bool]] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
    Op.IN: lambda value, several: value in several,
    Op.PREFIX: lambda value, start: value.startswith(start),
    Op.SUFFIX: lambda value, end: value.endswith(end),
}


def _test(shape: Shape, where: Where) -> Callable[[object], bool]:
    """Return one condition as a predicate on the column's value; NULL meets no comparison."""
    if where.op is Op.IS_NULL:
        return lambda value: value is None
    if where.op is Op.NOT_NULL:
        return lambda value: value is not None
    if where.op in _IN_JSON:
        test, wanted = _IN_JSON[where.op], json.loads(json.dumps(cast("Any", where.value)))
        encode = cast("Callable[[object], str]", shape.column(where.column).encode)
        return lambda value: value is not None and test(json.loads(encode(value)), wanted)
    compare, other = _COMPARE[where.op], plain(where.value)
    if where.op is Op.IN:
        other = [plain(item) for item in cast("Iterable[object]", where.value)]
    return lambda value: value is not None and compare(plain(value), other)


def _contains(whole: object, part: object) -> bool:
    """Compute JSONB's ``@>`` for objects (by key), lists (each element in some element) and
    scalars."""
    if isinstance(whole, dict) and isinstance(part, dict):
        found = cast("dict[str, object]", whole)
        pairs = cast("dict[str, object]", part)
        return all(key in found and _contains(found[key], value) for key, value in pairs.items())
    if isinstance(whole, list) and isinstance(part, list):
        elements = cast("list[object]", whole)
        return all(
            any(_contains(element, wanted) for element in elements)
            for wanted in cast("list[object]", part)
        )
    return whole.__class__ is part.__class__ and whole == part


_IN_JSON: Mapping[Op, Callable[[Any, Any], bool]] = {
    Op.CONTAINS: _contains,
    Op.LACKS: lambda whole, part: not _contains(whole, part),
    Op.HAS_KEY: lambda whole, key: isinstance(whole, dict) and key in whole,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes to carry out: deletions first, then rows in the order of their first ``put``.

    Both adapters keep this order, because it decides which unique index reports a conflict.
    """

    deletes: Sequence[tuple[Shape, Sequence[Key]]]
    puts: Sequence[tuple[Shape, Sequence[Row]]]


class Overlay:
    """The writes of an open transaction, applied on top of the stored rows."""

    def __init__(self) -> None:
        # All writes so far by kind and key, for reads and for the delta; None is a deletion.
        self.writes: dict[Shape, dict[Key, Row | None]] = {}
        # The writes that were not sent to the database yet.
        self._pending: dict[Shape, dict[Key, Row | None]] = {}

    def put(self, shape: Shape, row: Row) -> None:
        """Record a row."""
        self._note(shape, shape.key_of(row), row)

    def delete(self, shape: Shape, key: Key) -> None:
        """Record a deletion."""
        self._note(shape, key, None)

    def _note(self, shape: Shape, key: Key, row: Row | None) -> None:
        self.writes.setdefault(shape, {})[key] = row
        self._pending.setdefault(shape, {})[key] = row

    def take(self) -> Batch | None:
        """Return the writes to send to the database now; None if there are none."""
        pending, self._pending = self._pending, {}
        if not pending:
            return None
        deletes = [
            (shape, [key for key, row in rows.items() if row is None])
            for shape, rows in pending.items()
        ]
        puts = [
            (shape, [row for row in rows.values() if row is not None])
            for shape, rows in pending.items()
        ]
        return Batch([item for item in deletes if item[1]], [item for item in puts if item[1]])

    def over(self, shape: Shape, stored: Mapping[Key, Row]) -> Iterable[Row]:
        """Return a table's rows as the transaction sees them."""
        writes = self.writes.get(shape)
        if not writes:
            return stored.values()
        kept = [row for key, row in stored.items() if key not in writes]
        return kept + [row for row in writes.values() if row is not None]
