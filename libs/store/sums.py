"""Sums of what rows held over time: weights multiplied by the parts of their lives in a period.

``Tx.span_sums`` uses it: the database adds up where rows are many, ``add_up`` adds up rows in
memory by the same definition. ``tests/contract/test_span_sums.py`` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from libs.store.rows import Row, Shape, select
from libs.store.statements import Statement, conditions, quoted, table_name
from libs.store.terms import Query, Where

DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a row's life: not before the time in the column ``begin``, not after that in
    ``end``, as far as there are such columns and they are not NULL. Each second counts as often as
    the whole number in the column ``weight`` says; without that column, once. Rows that do not
    meet the conditions ``where`` have no such part."""

    begin: str = ""
    end: str = ""
    weight: str = ""
    where: tuple[Where, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanQuery:
    """Which rows' spans are added up, and in which groups.

    A row's life begins at the time in the column ``begin`` and ends at that in ``end``: NULL means
    that it has not begun, or has not ended. Of it the part in ``[since, until)`` counts.
    """

    begin: str
    end: str
    since: datetime
    until: datetime
    spans: Sequence[Span]
    # One group for each combination of values of these columns, which are never NULL.
    by: Sequence[str] = ()
    # And for each day (UTC).
    daily: bool = False
    where: Sequence[Where] = ()
    # How many groups are returned at most.
    limit: int | None = None


class SpanGroup(NamedTuple):
    """The sums of one group."""

    # The beginning of the day (UTC); None unless the query is daily.
    day: datetime | None
    # The values of the columns ``by``.
    key: tuple[Any, ...]
    # How many lives began in the period (on the day).
    begun: int
    # For each span of the query, in microseconds.
    sums: tuple[int, ...]


def checked(shape: Shape, query: SpanQuery) -> None:
    """Raise ValueError if the query names a column that these rows do not have, or groups by one
    that may be NULL."""
    names = [query.begin, query.end, *query.by, *(each.column for each in query.where)]
    for span in query.spans:
        names += [name for name in (span.begin, span.end, span.weight) if name]
        names += [each.column for each in span.where]
    for name in names:
        shape.column(name)
    for name in query.by:
        if shape.column(name).nullable:
            raise ValueError(f"{name} may be NULL: rows cannot be grouped by it")


@dataclass(slots=True)
class _Sum:
    begun: int = 0
    sums: list[int] = field(default_factory=list[int])


def add_up(shape: Shape, rows: Iterable[Row], query: SpanQuery) -> list[SpanGroup]:
    """Add up rows in memory, group by group in the order of day and key."""
    groups: dict[tuple[Any, ...], _Sum] = {}
    found_rows = select(shape, rows, Query(query.where))
    counts = [
        {shape.key_of(row) for row in select(shape, found_rows, Query(span.where))}
        for span in query.spans
    ]
    for row in found_rows:
        begin, end = getattr(row, query.begin), getattr(row, query.end)
        if begin is None or begin >= query.until or (end is not None and end < query.since):
            continue
        key = tuple(getattr(row, name) for name in query.by)
        for day, since, until in _periods(query, begin, end):
            found = groups.setdefault((day, key), _Sum(sums=[0] * len(query.spans)))
            found.begun += since <= begin < until
            for place, span in enumerate(query.spans):
                times = [since, begin] + ([getattr(row, span.begin)] if span.begin else [])
                ends = [until, end] + ([getattr(row, span.end)] if span.end else [])
                first = max(each for each in times if each is not None)
                last = min(each for each in ends if each is not None)
                weight = getattr(row, span.weight) if span.weight else 1
                if last > first and shape.key_of(row) in counts[place]:
                    found.sums[place] += weight * ((last - first) // _MICROSECOND)
    ordered = sorted(groups.items(), key=lambda each: each[0])
    return [
        SpanGroup(day, key, found.begun, tuple(found.sums))
        for (day, key), found in ordered[: query.limit]
    ]


def _periods(
    query: SpanQuery, begin: datetime, end: datetime | None
) -> Iterator[tuple[datetime | None, datetime, datetime]]:
    """The query's period, or the days of it on which a row lived."""
    if not query.daily:
        yield None, query.since, query.until
        return
    first = max(begin, query.since).astimezone(UTC)
    last = max(first, min(end or query.until, query.until) - _MICROSECOND)
    day = first.replace(hour=0, minute=0, second=0, microsecond=0)
    while day <= last:
        yield day, max(day, query.since), min(day + DAY, query.until)
        day += DAY


def statement(shape: Shape, query: SpanQuery) -> Statement:
    """Return the same as SQL; its columns are the day, those of ``by``, the lives that began, and
    the sums.

    The inner queries find the rows with their days, then the length of each different span.
    ``OFFSET 0`` keeps them apart: merged, each length would be computed once for each weight.
    """
    arguments: list[object] = [query.since, query.until]
    begin, end = quoted(query.begin), quoted(query.end)
    since, until = "$1::timestamptz", "$2::timestamptz"
    where = [f"{begin} < {until}", f"({end} >= {since} OR {end} IS NULL)"]
    where += conditions(shape, query.where, arguments)
    lengths = {(span.begin, span.end): f"length_{n}" for n, span in enumerate(query.spans)}
    kept = [*query.by, *(span.weight for span in query.spans if span.weight)]
    kept += [each.column for span in query.spans for each in span.where]
    times = [query.begin, query.end, *(name for span in lengths for name in span if name)]
    day = _days(begin, end, since, until) if query.daily else "NULL::timestamptz"
    rows = (
        f"SELECT {_listed([*kept, *times])}, {day} AS of_day"  # noqa: S608 - declared names only
        f" FROM {table_name(shape)} WHERE {' AND '.join(where)}"
    )
    if query.daily:
        since, until = f"GREATEST({since}, of_day)", f"LEAST({until}, of_day + interval '24 hours')"
    parts = ["of_day", f"{begin} >= {since} AND {begin} < {until} AS begins"]
    parts += [quoted(name) for name in dict.fromkeys(kept)]
    parts += [
        f"{_length(span, begin, end, since, until)} AS {name}" for span, name in lengths.items()
    ]
    lived = f"SELECT {', '.join(parts)} FROM ({rows}) AS r OFFSET 0"  # noqa: S608 - as above
    sums = [_sum(shape, span, lengths[span.begin, span.end], arguments) for span in query.spans]
    keys = ["of_day", *(quoted(name) for name in query.by)]
    groups = ", ".join(str(place) for place in range(1, len(keys) + 1))
    text = (
        f"SELECT {', '.join([*keys, 'count(*) FILTER (WHERE begins)', *sums])}"  # noqa: S608 - as above
        f" FROM ({lived}) AS l GROUP BY {groups} ORDER BY {groups}"
    )
    if query.limit is not None:
        arguments.append(query.limit)
        text += f" LIMIT ${len(arguments)}::bigint"
    return text, arguments


def _sum(shape: Shape, span: Span, length: str, arguments: list[object]) -> str:
    """As text: the driver reads large numbers slowly."""
    weight = f"{quoted(span.weight)} * " if span.weight else ""
    where = " AND ".join(conditions(shape, span.where, arguments))
    only = f" FILTER (WHERE {where})" if where else ""
    return f"coalesce(sum({weight}{length}){only}, 0)::text"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in dict.fromkeys(names))


def _days(begin: str, end: str, since: str, until: str) -> str:
    """The beginnings of a row's days in the period. LEAST and GREATEST pass over NULL."""
    first, last = f"GREATEST({begin}, {since})", f"LEAST({end}, {until})"
    return (
        f"generate_series(date_trunc('day', {first}, 'UTC'),"
        f" GREATEST({last} - interval '1 microsecond', {first}), interval '24 hours')"
    )


def _length(span: tuple[str, str], begin: str, end: str, since: str, until: str) -> str:
    """Microseconds. Seconds as doubles are exact to the microsecond for 100 years."""
    first = ", ".join([since, begin, *([quoted(span[0])] if span[0] else [])])
    last = ", ".join([until, end, *([quoted(span[1])] if span[1] else [])])
    lasts = f"date_part('epoch', LEAST({last}) - GREATEST({first}))"
    return f"GREATEST(0, ({lasts} * 1000000)::bigint)"


def group_of(shape: Shape, query: SpanQuery, record: Any) -> SpanGroup:  # noqa: ANN401 - the driver's record
    """Return a group from a record of ``statement``."""
    day, *values = record
    size = len(query.by)
    key = tuple(
        value if value is None or (decode := shape.column(name).decode) is None else decode(value)
        for name, value in zip(query.by, values[:size], strict=True)
    )
    begun, *sums = values[size:]
    return SpanGroup(day, key, int(begun), tuple(int(each) for each in sums))
