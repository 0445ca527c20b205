"""Builds the adapter's SQL from a kind's shape: texts and arguments, without a database.

Rows are sent as one array for each column (``unnest``), so any number of rows needs one statement,
one plan and one round trip. Values are always arguments; names come from the table declarations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from libs.store.rows import Column, Key, Row, Shape, plain
from libs.store.terms import Op, Query, UnreadableRow, Where

Statement = tuple[str, list[object]]


def quoted(*names: str) -> str:
    """Return a dotted, quoted name."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def table_name(shape: Shape) -> str:
    """Return the quoted name of the table with its schema."""
    return quoted(shape.schema, shape.table)


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(quoted(column.name) for column in columns)


def _arrays(columns: Iterable[Column]) -> str:
    return ", ".join(f"${place}::{each.sql_type}[]" for place, each in enumerate(columns, 1))


@cache
def _upsert_text(shape: Shape) -> str:
    key = [shape.column(name) for name in shape.key]
    others = [column for column in shape.columns if column.name not in shape.key]
    changes = ", ".join(f"{quoted(each.name)} = excluded.{quoted(each.name)}" for each in others)
    return (
        f"INSERT INTO {table_name(shape)} ({_names(shape.columns)})"  # noqa: S608 - declared names only
        f" SELECT * FROM unnest({_arrays(shape.columns)})"
        f" ON CONFLICT ({_names(key)}) DO {f'UPDATE SET {changes}' if others else 'NOTHING'}"
    )


def upsert(shape: Shape, rows: Sequence[Row]) -> Statement:
    """Insert rows or replace those with the same key. The rows must have different keys."""
    by_column = zip(*(shape.values_of(row) for row in rows), strict=True)
    return _upsert_text(shape), [
        list(values)
        if column.encode is None
        else [None if value is None else column.encode(value) for value in values]
        for column, values in zip(shape.columns, by_column, strict=True)
    ]


@cache
def _delete_text(shape: Shape) -> str:
    key = [shape.column(name) for name in shape.key]
    return (
        f"DELETE FROM {table_name(shape)} WHERE ({_names(key)})"  # noqa: S608 - declared names only
        f" IN (SELECT * FROM unnest({_arrays(key)}))"
    )


def delete(shape: Shape, keys: Sequence[Key]) -> Statement:
    """Delete the rows with these keys."""
    return _delete_text(shape), _key_arrays(shape, keys)


def _key_arrays(shape: Shape, keys: Sequence[Key]) -> list[object]:
    """Return keys as one array for each of their columns."""
    parts = [shape.key_parts(key) for key in keys]
    return [
        [shape.column(name).encoded(part[place]) for part in parts]
        for place, name in enumerate(shape.key)
    ]


@cache
def _get_text(shape: Shape) -> str:
    key = [shape.column(name) for name in shape.key]
    same = " AND ".join(
        f"{quoted(each.name)} = ${place}::{each.sql_type}" for place, each in enumerate(key, 1)
    )
    return f"SELECT {_names(shape.columns)} FROM {table_name(shape)} WHERE {same}"  # noqa: S608 - declared names only


def get(shape: Shape, key: Key) -> Statement:
    """Select one row by its key."""
    parts = zip(shape.key, shape.key_parts(key), strict=True)
    return _get_text(shape), [shape.column(name).encoded(part) for name, part in parts]


@cache
def _load_text(shape: Shape) -> str:
    key = [shape.column(name) for name in shape.key]
    return (
        f"SELECT {_names(shape.columns)} FROM {table_name(shape)} WHERE ({_names(key)})"  # noqa: S608 - declared names only
        f" IN (SELECT * FROM unnest({_arrays(key)}))"
    )


def load(shape: Shape, keys: Sequence[Key]) -> Statement:
    """Select the rows with these keys."""
    return _load_text(shape), _key_arrays(shape, keys)


def select(shape: Shape, query: Query) -> Statement:
    """Select the rows that meet every condition, with ties in the order of the primary key."""
    arguments: list[object] = []
    where = conditions(shape, query.where, arguments)
    orders = [f"{quoted(item.column)}{' DESC' * item.descending}" for item in query.order_by]
    orders += [quoted(name) for name in shape.key]
    text = f"SELECT {_names(shape.columns)} FROM {table_name(shape)}"  # noqa: S608 - declared names only
    if where:
        text += f" WHERE {' AND '.join(where)}"
    text += f" ORDER BY {', '.join(orders)}"
    if query.limit is not None:
        text += f" LIMIT {_argument(arguments, query.limit, 'bigint')}"
    if query.offset:
        text += f" OFFSET {_argument(arguments, query.offset, 'bigint')}"
    return text, arguments


def _argument(arguments: list[object], value: object, sql_type: str) -> str:
    """Add an argument; return its place in the text."""
    arguments.append(value)
    return f"${len(arguments)}::{sql_type}"


def conditions(shape: Shape, where: Sequence[Where], arguments: list[object]) -> list[str]:
    """Return conditions as SQL; add their values to ``arguments``."""
    argument = partial(_argument, arguments)
    return [_condition(shape.column(item.column), item, argument) for item in where]


# The SQL of each operation: {name} is the column, {0} the argument.
_CONDITIONS: Mapping[Op, str] = {
    Op.EQ: "{name} = {0}",
    Op.NE: "{name} <> {0}",
    Op.LT: "{name} < {0}",
    Op.LE: "{name} <= {0}",
    Op.GT: "{name} > {0}",
    Op.GE: "{name} >= {0}",
    Op.IN: "{name} = ANY({0})",
    Op.IS_NULL: "{name} IS NULL",
    Op.NOT_NULL: "{name} IS NOT NULL",
    Op.PREFIX: "starts_with({name}, {0})",
    Op.SUFFIX: "starts_with(reverse({name}), reverse({0}))",
    Op.CONTAINS: "{name} @> {0}",
    Op.LACKS: "NOT ({name} @> {0})",
    Op.HAS_KEY: "{name} ? {0}",
}


def _condition(column: Column, where: Where, argument: Callable[[object, str], str]) -> str:
    """Return one condition as SQL; pass its value to ``argument``."""
    value: Any = where.value
    match where.op:
        case Op.IS_NULL | Op.NOT_NULL:
            places: list[str] = []
        case Op.IN:
            several = [column.encoded(item) for item in value]
            places = [argument(several, f"{column.sql_type}[]")]
        case Op.PREFIX | Op.SUFFIX | Op.HAS_KEY:
            places = [argument(plain(value), "text")]
        case Op.CONTAINS | Op.LACKS:
            places = [argument(json.dumps(value), "jsonb")]
        case _:
            places = [argument(column.encoded(value), column.sql_type)]
    return _CONDITIONS[where.op].format(*places, name=quoted(column.name))


_ARGUMENT = re.compile(r"\$(\d+)")


@cache
def _together_text(texts: tuple[str, ...], counts: tuple[int, ...]) -> str:
    """Return one statement that runs several, none of which sees the writes of another. Its result
    is that of the last one."""
    found, before = list[str](), 0
    for number, (text, count) in enumerate(zip(texts, counts, strict=True)):
        moved = _ARGUMENT.sub(lambda place: f"${int(place[1]) + before}", text)  # noqa: B023 - called at once
        found.append(f"s{number} AS ({moved})")
        before += count
    result = f"SELECT * FROM s{len(texts) - 1}" if " RETURNING " in texts[-1] else "SELECT 1"  # noqa: S608 - a name made here
    return f"WITH {', '.join(found)} {result}"


def together(parts: Sequence[Statement]) -> Statement:
    """Combine several writes, each to a different table, into one statement and one round trip."""
    if len(parts) == 1:
        return parts[0]
    texts = tuple(text for text, _ in parts)
    counts = tuple(len(arguments) for _, arguments in parts)
    return _together_text(texts, counts), [each for _, some in parts for each in some]


def row_of(shape: Shape, record: Any) -> Row:  # noqa: ANN401 - the driver's record
    """Make a row from a record with the shape's columns in their order, or an ``UnreadableRow``."""
    try:
        values = {
            column.name: (value if value is None or column.decode is None else column.decode(value))
            for column, value in zip(shape.columns, record, strict=True)
        }
        return shape.kind(**values)
    except Exception as error:  # noqa: BLE001 - any error concerns this row alone
        return _unreadable(shape, record, error)


def _unreadable(shape: Shape, record: Any, error: Exception) -> UnreadableRow:  # noqa: ANN401 - the driver's record
    """Find the column that cannot be decoded. The decoders' own texts are left out, because they
    quote the value."""
    found = dict(zip((column.name for column in shape.columns), record, strict=True))
    problem = f"its columns do not make a row ({type(error).__name__})"
    for column in shape.columns:
        value = found[column.name]
        try:
            if value is not None and column.decode is not None:
                column.decode(value)
        except Exception as wrong:  # noqa: BLE001 - as above
            problem = f"column {column.name} cannot be decoded ({type(wrong).__name__})"
            break
    return UnreadableRow(shape.kind, tuple(found[name] for name in shape.key), problem)
