"""A service's tables: its row dataclasses, the SQLModel classes beside them, inbox and outbox.

Every schema also has tables of dead letters, whose rows are read and written like a service's own.

A service's ``tables.py``::

    Base = table_base("scheduler")

    class Task(Base, table=True):
        task_id: str = key_column()
        state: TaskState = enum_column(TaskState)
        spec: TaskSpec = json_column(TaskSpec)
        slots: tuple[Slot, ...] = json_column(tuple[Slot, ...])
        submitted_at: datetime = time_column()
        live_attempt: int | None
        __table_args__ = (
            partial_unique("task_one_live", "task_id", where="live_attempt IS NOT NULL",
                           holds=lambda row: row.live_attempt is not None),
        )

    TABLES = Tables(schema="scheduler", rows={domain.Task: Task})

The table classes declare the schema (for Alembic and for the adapters) and never hold a value. The
table is named after the class unless it says ``__tablename__``. A column is nullable exactly if its
annotation allows None. ``rule()`` and ``partial_unique()`` take a condition twice, as SQL and as a
Python function of the row, because the memory store obeys it too. Foreign keys are refused: the
memory store could not hold them to it at a sane price.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, NewType, Union, cast, get_args, get_origin

import sqlalchemy as sa
from sqlalchemy.orm import registry
from sqlmodel import SQLModel
from sqlmodel.sql.sqltypes import AutoString, UTCDateTime

from libs.store.columns import (
    TEXT,
    EnumText,
    JsonOf,
    enum_column,
    json_column,
    key_column,
    time_column,
)
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow, Direction
from libs.store.rows import Check, Column, Row, Shape, Unique

# The names of our own tables; a service's table may not have one of them.
INBOX, OUTBOX, LEADER, VERSION_TABLE = "inbox", "outbox", "leader", "alembic_version"
# What still has to be published: as the relay takes it, and what the bus refused so far.
UNREFUSED = "published_at IS NULL AND refused_at IS NULL"
REFUSED = "published_at IS NULL AND refused_at IS NOT NULL"

_NAMES = {
    "pk": "%(table_name)s_pkey",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
}


def table_base(schema: str) -> type[SQLModel]:
    """A base class for one service's tables, with metadata of its own and inbox, outbox, leader."""
    metadata = sa.MetaData(schema=schema, naming_convention=_NAMES)
    _add_plumbing(metadata)

    class Base(SQLModel, registry=registry(metadata=metadata)):
        """The base of this service's tables."""

    class DeadLetter(Base, table=True):
        """``DeadLetterRow``."""

        __tablename__ = "dead_letter"  # pyright: ignore[reportAssignmentType] - as SQLModel's own documentation
        id: str = key_column()
        direction: Direction = enum_column(Direction)
        event_id: str
        type: str
        subject: str
        headers: Mapping[str, str] = json_column(dict[str, str])
        size: int
        reason: str
        set_apart_at: datetime = time_column(index=True)
        replays: int
        replay_at: datetime | None = time_column()

    class DeadLetterBodyTable(Base, table=True):
        """``DeadLetterBody``."""

        __tablename__ = "dead_letter_body"  # pyright: ignore[reportAssignmentType] - as SQLModel's own documentation
        id: str = key_column()
        body: bytes

    metadata.info["dead letters"] = {
        DeadLetterRow: DeadLetter,
        DeadLetterBody: DeadLetterBodyTable,
    }
    return Base


def partial_unique(name: str, *columns: str, where: str, holds: Callable[[Any], bool]) -> sa.Index:
    """A unique index over the rows that meet a condition, given as SQL and as a function."""
    condition = sa.text(where)
    return sa.Index(name, *columns, unique=True, postgresql_where=condition, info={"where": holds})


def rule(name: str, sql: str, holds: Callable[[Any], bool]) -> sa.CheckConstraint:
    """A CHECK constraint, given as SQL and as a function of the row."""
    return sa.CheckConstraint(sa.text(sql), name=name, info={"where": holds})


def _add_plumbing(metadata: sa.MetaData) -> None:
    """Declare the tables that every service has."""
    moment = sa.DateTime(timezone=True)
    sa.Table(
        INBOX,
        metadata,
        sa.Column("event_id", TEXT, primary_key=True),
        sa.Column("seen_at", moment, nullable=False),
        # Pruning takes the oldest first. A block range index would not do: once pruned space is
        # used again, old and new rows lie in the same blocks.
        sa.Index("inbox_seen_idx", "seen_at"),
    )
    sa.Table(
        OUTBOX,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("time", moment, nullable=False),
        sa.Column("traceparent", TEXT, nullable=False),
        # Text and not JSONB: published again byte for byte.
        sa.Column("body", TEXT, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        # For people. What is published again or dropped goes by the period, not by a clock.
        sa.Column("published_at", moment, nullable=True),
        sa.Column("period", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        # Since when the bus refuses it; NULL: it does not.
        sa.Column("refused_at", moment, nullable=True),
        # Two indexes, so that however many are refused, nobody has to read past them.
        sa.Index(
            "outbox_unpublished_idx",
            "id",
            postgresql_where=sa.text(UNREFUSED),
        ),
        sa.Index(
            "outbox_refused_idx",
            "id",
            postgresql_where=sa.text(REFUSED),
        ),
    )
    sa.Table(
        LEADER,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        # The bus server that the outbox was last published to.
        sa.Column("bus_server", TEXT, nullable=False),
        # The outbox's current period: see ``port.Store.next_period``.
        sa.Column("period", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint(sa.text("id = 1"), name="leader_one_row"),
    )


@dataclass(frozen=True, eq=False)
class Tables:
    """One service's schema: which table class stands for which row dataclass.

    Plain columns are normalised here: int is BIGINT, str is TEXT sorted by code points, a time is
    ``timestamptz``. ``check_tables`` says what else is wrong; both adapters call it when opened.
    """

    schema: str
    rows: Mapping[type[Any], type[SQLModel]]
    # Rows that the leader alone writes, and soon reads again: the newest stay in its memory.
    recent: tuple[type[Any], ...] = ()
    shapes: Mapping[type[Any], Shape] = field(init=False)

    def __post_init__(self) -> None:
        metadata = table_base(self.schema).metadata
        for table in self.rows.values():
            metadata = cast("Any", table).__table__.metadata
        # Declared by ``table_base``; another table would be a mistake that ``check_tables`` names.
        if "dead letters" in metadata.info:
            object.__setattr__(self, "rows", {**self.rows, **metadata.info["dead letters"]})
        for kind in self.rows:
            for column in self.table(kind).columns:
                column.type = _normalised(column.type)
        shapes = {kind: _shape(kind, self.table(kind), self.schema) for kind in self.rows}
        object.__setattr__(self, "shapes", shapes)

    @cached_property
    def metadata(self) -> sa.MetaData:
        """Every table of the schema, the plumbing included; what Alembic compares with."""
        return self.table(next(iter(self.rows))).metadata

    def table(self, kind: type[Any]) -> sa.Table:
        """The SQLAlchemy table of a row dataclass."""
        return cast("sa.Table", cast("Any", self.rows[kind]).__table__)

    def shape(self, kind: type[Any]) -> Shape:
        """What the adapters know about this kind of rows; TypeError if it has no table."""
        try:
            return self.shapes[kind]
        except KeyError:
            known = ", ".join(sorted(each.__name__ for each in self.rows)) or "nothing"
            raise TypeError(
                f"schema {self.schema!r} has no table for {kind!r}; it has {known}"
            ) from None


# Generic in what Python makes of them, which does not matter here.
_FLOAT: Any = sa.Float
_DOUBLE: Any = sa.Double

# The one PostgreSQL type for each type that SQLModel derives from an annotation.
_NORMAL: Sequence[tuple[Any, Any]] = (
    (JsonOf, None),
    (EnumText, None),
    (sa.Enum, None),  # a native enum: refused when the shape is read
    (sa.Integer, sa.BigInteger()),
    (sa.String, TEXT),
    (AutoString, TEXT),
    (sa.DateTime, sa.DateTime(timezone=True)),
    (UTCDateTime, sa.DateTime(timezone=True)),
    (_FLOAT, _DOUBLE()),
)


def _normalised(found: Any) -> Any:  # noqa: ANN401 - SQLAlchemy's types are generic in anything
    for sa_type, normal in _NORMAL:
        if isinstance(found, sa_type):
            return found if normal is None else normal
    return found


# What each plain column holds: SQLAlchemy type, PostgreSQL name, Python types it accepts.
_PLAIN: Sequence[tuple[Any, str, tuple[type, ...]]] = (
    (sa.BigInteger, "bigint", (int,)),
    (_DOUBLE, "double precision", (float, int)),
    (sa.Boolean, "boolean", (bool,)),
    (sa.Text, "text", (str,)),
    (sa.DateTime, "timestamptz", (datetime,)),
    (sa.LargeBinary, "bytea", (bytes,)),
)


def _column(column: sa.Column[Any]) -> Column:
    """What the adapters know about one column; TypeError if they cannot store its type."""
    found: Any = column.type
    nullable = bool(column.nullable)
    if isinstance(found, JsonOf):
        return Column(column.name, "jsonb", nullable, (), found.encode, found.decode)
    if isinstance(found, EnumText):
        return Column(column.name, "text", nullable, (found.enum_type,), found.encode, found.decode)
    for sa_type, sql_type, accepts in _PLAIN:
        if isinstance(found, sa_type):
            return Column(column.name, sql_type, nullable, accepts)
    raise TypeError(
        f"{column.table.name}.{column.name}: no store for {found!r}; "
        "use enum_column, json_column or time_column"
    )


def _shape(kind: type[Any], table: sa.Table, schema: str) -> Shape:
    """Read a kind's shape off its table; columns in the order of the dataclass's fields."""
    order = {each.name: index for index, each in enumerate(dataclasses.fields(kind))}
    columns = sorted(table.columns, key=lambda column: order.get(column.name, len(order)))
    return Shape(
        kind=kind,
        schema=schema,
        table=table.name,
        columns=tuple(_column(column) for column in columns),
        key=tuple(column.name for column in table.primary_key.columns),
        uniques=tuple(_uniques(table)),
        checks=tuple(
            Check(str(each.name), each.info["where"])
            for each in table.constraints
            if isinstance(each, sa.CheckConstraint) and "where" in each.info
        ),
    )


def _uniques(table: sa.Table) -> list[Unique]:
    """Unique constraints and indexes, in a fixed order."""
    found = [
        Unique(str(index.name), tuple(index.columns.keys()), index.info.get("where"))
        for index in table.indexes
        if index.unique
    ]
    found += [
        Unique(str(each.name), tuple(each.columns.keys()))
        for each in table.constraints
        if isinstance(each, sa.UniqueConstraint)
    ]
    return sorted(found, key=lambda unique: unique.name)


def check_tables(tables: Tables) -> list[str]:
    """What is wrong with a schema's declaration, one sentence each; empty if it is in order."""
    return [
        f"{tables.schema}.{tables.table(kind).name}: {problem}"
        for kind in tables.rows
        for problem in _problems(tables, kind)
    ]


def _problems(tables: Tables, kind: type[Any]) -> list[str]:
    """What is wrong with one table."""
    table = tables.table(kind)
    names = {each.name for each in dataclasses.fields(kind)}
    columns = set(table.columns.keys())
    found = [f"column {name} has no field in {kind.__name__}" for name in sorted(columns - names)]
    found += [f"field {name} of {kind.__name__} has no column" for name in sorted(names - columns)]
    if table.metadata is not tables.metadata or table.schema != tables.schema:
        found.append(f"it is not declared on table_base({tables.schema!r})")
    if not table.primary_key.columns:
        found.append("it has no primary key; use key_column()")
    if table.foreign_keys:
        found.append("foreign keys are not supported; keep such rows together in the store")
    found += [
        f"index {index.name} has a condition but no function for it; use partial_unique()"
        for index in table.indexes
        if index.unique
        and index.dialect_options["postgresql"]["where"] is not None
        and "where" not in index.info
    ]
    found += [
        f"constraint {each.name} has no function for it; use rule()"
        for each in table.constraints
        if isinstance(each, sa.CheckConstraint) and "where" not in each.info
    ]
    return found + _mismatches(kind, tables.shapes[kind], table)


def _mismatches(kind: type[Any], shape: Shape, table: sa.Table) -> list[str]:
    """Fields whose type and column do not agree."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        # The dataclass imports a type for checkers only; then the names have to do.
        return []
    return [
        f"field {name} is {hint}, but its column holds {shape.by_name[name].sql_type}"
        f"{' or NULL' if shape.by_name[name].nullable else ''}"
        for name, hint in hints.items()
        if name in shape.by_name and not _agree(hint, shape.by_name[name], table.columns[name])
    ]


def _agree(hint: object, column: Column, declared: sa.Column[Any]) -> bool:
    """True if the column can hold every value of the field's type, and nothing more."""
    parts = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    nullable = type(None) in parts
    parts -= {type(None)}
    if nullable != column.nullable:
        return False
    if isinstance(declared.type, JsonOf):
        return True
    plain = {part.__supertype__ if isinstance(part, NewType) else part for part in parts}
    if isinstance(declared.type, EnumText):
        return plain == {declared.type.enum_type}
    return all(
        isinstance(part, type) and not issubclass(part, Enum) and part in column.accepts
        for part in plain
    )


def open_tables(tables: Tables) -> Mapping[type[Row], Shape]:
    """The shapes, for an adapter being opened; TypeError names every mistake of the schema."""
    problems = check_tables(tables)
    if problems:
        raise TypeError("; ".join(problems))
    return tables.shapes
