"""A service's tables, each derived from its row dataclass.

A service's ``tables.py`` declares what a dataclass cannot express::

    TABLES = Tables(
        "scheduler",
        table(Task, "task", index("state"),
              rule("task_tries", "tries >= 0", lambda row: row.tries >= 0), key="task_id"),
        table(Slot, "slot", unique("node_id", "gpu"), key=("task_id", "gpu")),
    )

The columns are the dataclass's fields. A column is nullable exactly if its annotation allows None;
``str`` is TEXT sorted by code points, ``int`` BIGINT, ``float`` DOUBLE PRECISION, ``datetime``
``timestamptz``, ``bool`` BOOLEAN, ``bytes`` BYTEA, an enum TEXT with the member's value, and
everything else (a message, a tuple, a mapping, a dataclass) JSONB. ``rule()`` and
``partial_unique()`` take a condition twice, as SQL and as a Python function of the row, because the
memory store enforces it too. There are no foreign keys, because the memory store would need too
much code to enforce them.

Every schema also has tables of dead letters, which are read and written like a service's own
tables, and the tables inbox, outbox and leader (``libs.store.metadata``).
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NewType,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from libs.store.columns import EnumText, JsonOf
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow
from libs.store.retention import Retention, goes_with
from libs.store.rows import Check, Column, Index, Shape, Unique

if TYPE_CHECKING:
    from sqlalchemy import MetaData

# The names of the common tables; a service's own table may not use them.
INBOX, OUTBOX, LEADER, VERSION_TABLE = "inbox", "outbox", "leader", "alembic_version"
# Unpublished events: those that the relay publishes next, and those that the bus refused so far.
UNREFUSED = "published_at IS NULL AND refused_at IS NULL"
REFUSED = "published_at IS NULL AND refused_at IS NOT NULL"

# Python type of a plain column -> its PostgreSQL type and the Python types that it accepts.
_PLAIN: Mapping[Any, tuple[str, tuple[type, ...]]] = {
    int: ("bigint", (int,)),
    float: ("double precision", (float, int)),
    bool: ("boolean", (bool,)),
    str: ("text", (str,)),
    datetime: ("timestamptz", (datetime,)),
    bytes: ("bytea", (bytes,)),
}


def index(*columns: str, name: str = "", where: str | None = None) -> Index:
    """An index over columns or SQL expressions; with ``where``, over the rows that meet it."""
    return Index(name, columns, where)


def unique(*columns: str, name: str = "") -> Unique:
    """A unique constraint. NULLs differ from one another."""
    return Unique(name, columns)


def partial_unique(name: str, *columns: str, where: str, holds: Callable[[Any], bool]) -> Unique:
    """A unique index over the rows that meet a condition, given as SQL and as a function."""
    return Unique(name, columns, holds, where)


def rule(name: str, sql: str, holds: Callable[[Any], bool]) -> Check:
    """A CHECK constraint, given as SQL and as a function of the row."""
    return Check(name, holds, sql)


def table(
    kind: type[Any],
    name: str,
    *rules: Index | Unique | Check,
    key: str | tuple[str, ...],
    recent: bool = False,
    retention: Retention | None = None,
) -> Shape:
    """Derive the table of a row dataclass. Use ``recent`` if only the leader writes these rows and
    soon reads them again: its memory then keeps the newest. ``retention`` says what bounds the
    table; every table of a service needs one. Raises TypeError if a table cannot be derived."""
    keys = (key,) if isinstance(key, str) else key
    columns = _columns(kind)
    indexes = [_named(each, name, "idx") for each in rules if isinstance(each, Index)]
    uniques = [_named(each, name, "key") for each in rules if isinstance(each, Unique)]
    checks = [each for each in rules if isinstance(each, Check)]
    known = {column.name for column in columns}
    named = {*keys, *(part for each in (*indexes, *uniques) for part in each.columns)}
    unknown = sorted(part for part in named - known if part.isidentifier())
    if unknown:
        raise TypeError(f"table {name}: {kind.__name__} has no field {', '.join(unknown)}")
    if not keys:
        raise TypeError(f"table {name}: it needs a primary key")
    return Shape(
        kind=kind,
        schema="",
        table=name,
        columns=columns,
        key=keys,
        # Sorted by name, as PostgreSQL checks them: it reports the first violated one.
        uniques=tuple(sorted(uniques, key=lambda each: each.name)),
        checks=tuple(sorted(checks, key=lambda each: each.name)),
        indexes=tuple(indexes),
        recent=recent,
        retention=retention,
    )


def _named(found: Any, table_name: str, suffix: str) -> Any:  # noqa: ANN401 - Index or Unique
    """Give an unnamed index or constraint the name that PostgreSQL itself would choose."""
    return replace(found, name=found.name or "_".join((table_name, *found.columns, suffix)))


def _columns(kind: type[Any]) -> tuple[Column, ...]:
    """Derive one column for each field."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{kind.__name__}: {error}; import the types of a row's fields at run time,"
            " not for type checkers alone"
        ) from None
    return tuple(_column(each.name, hints[each.name]) for each in dataclasses.fields(kind))


def _column(name: str, hint: Any) -> Column:  # noqa: ANN401 - any type form
    """Derive the column that holds exactly the values of the field's type."""
    nullable = False
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        nullable = len(parts) < len(get_args(hint))
        hint = Union[tuple(parts)]  # noqa: UP007 - of a number of types not known before
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    while isinstance(bare, NewType):
        bare = bare.__supertype__
    if isinstance(bare, type) and issubclass(bare, Enum):
        member = EnumText(bare)
        return Column(name, "text", nullable, (bare,), member.encode, member.decode)
    if bare in _PLAIN:
        sql_type, accepts = _PLAIN[bare]
        return Column(name, sql_type, nullable, accepts)
    document = JsonOf(hint)
    return Column(name, "jsonb", nullable, (), document.encode, document.decode)


_DEAD_LETTERS = (
    table(
        DeadLetterRow,
        "dead_letter",
        index("set_apart_at"),
        key="id",
        retention=Retention(
            "by age; of those that could not be handled, the newest so many",
            ("dead_letters_keep_seconds", "dead_letters_max"),
        ),
    ),
    table(DeadLetterBody, "dead_letter_body", key="id", retention=goes_with(DeadLetterRow)),
)


# What bounds the tables that every schema has beside those of rows.
COMMON_RETENTION: Mapping[str, Retention] = {
    INBOX: Retention(
        "by age, longer than the bus keeps an event; as many as the events of that time",
        ("inbox_keep_seconds",),
    ),
    OUTBOX: Retention(
        "published ones by running time; unpublished ones never", ("outbox_keep_seconds",)
    ),
    LEADER: Retention("one"),
    VERSION_TABLE: Retention("one"),
}


class Tables:
    """One service's schema: the tables of its rows and of its dead letters."""

    def __init__(self, schema: str, *tables: Shape) -> None:
        self.schema = schema
        self.shapes: Mapping[type[Any], Shape] = {
            each.kind: replace(each, schema=schema) for each in (*tables, *_DEAD_LETTERS)
        }
        if len(self.shapes) < len(tables) + len(_DEAD_LETTERS):
            twice = next(each.kind for each in tables if self.shapes[each.kind].table != each.table)
            raise TypeError(f"schema {schema!r}: {twice.__name__} has two tables")
        names = {INBOX, OUTBOX, LEADER, VERSION_TABLE, *(each.table for each in _DEAD_LETTERS)}
        for each in tables:
            if each.table in names:
                raise TypeError(f"schema {schema!r} already has a table {each.table!r}")
            names.add(each.table)

    @cached_property
    def metadata(self) -> MetaData:
        """The whole schema for SQLAlchemy and Alembic, which only migrations import."""
        from libs.store.metadata import metadata_of  # noqa: PLC0415 - see above

        return metadata_of(self)

    def shape(self, kind: type[Any]) -> Shape:
        """Return the shape of this kind of rows. Raises TypeError if it has no table."""
        try:
            return self.shapes[kind]
        except KeyError:
            known = ", ".join(sorted(each.__name__ for each in self.shapes)) or "nothing"
            raise TypeError(
                f"schema {self.schema!r} has no table for {kind!r}; it has {known}"
            ) from None
