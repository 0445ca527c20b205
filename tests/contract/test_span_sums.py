"""Sums of what rows held over time: memory and PostgreSQL against a count, minute by minute."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import product
from random import Random

import pytest

from libs.contracts.messages import TaskState
from libs.store.port import Op, Span, SpanGroup, SpanQuery, Store, Where
from tests.contract.store_harness import put
from tests.kit.clock import START
from tests.libs.store.example import Job, Slot, a_job

MINUTE = timedelta(minutes=1)
MIDNIGHT = START.replace(hour=0, minute=0, second=0, microsecond=0)
STATES = (TaskState.QUEUED, TaskState.RUNNING)


def jobs(random: Random) -> list[Job]:
    """Lives of up to two days around midnight, in whole minutes: the oracle counts minutes."""
    found: list[Job] = []
    for number in range(60):
        begin = MIDNIGHT + random.randrange(-3000, 3000) * MINUTE
        end = begin + random.choice((0, 1, random.randrange(3000))) * MINUTE
        found.append(
            a_job(
                f"j{number}",
                created_at=begin,
                deadline_at=None if random.random() < 0.2 else end,
                state=random.choice(STATES),
                ended=True,
                rank=random.randrange(5),
            )
        )
    return found


def minutes(since: datetime, until: datetime) -> list[datetime]:
    return [since + number * MINUTE for number in range(int((until - since) / MINUTE))]


def expected(rows: list[Job], query: SpanQuery) -> list[SpanGroup]:
    """Each minute of the period adds to the group of its day."""
    groups: dict[tuple[datetime | None, tuple[object, ...]], list[int]] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in query.by)
        for at in minutes(query.since, query.until):
            day = at.replace(hour=0, minute=0) if query.daily else None
            begins = row.created_at == at
            lives = row.created_at <= at and (row.deadline_at is None or at < row.deadline_at)
            if begins or lives:
                found = groups.setdefault((day, key), [0, 0, 0, 0])
                found[0] += begins
                found[1] += 60_000_000 * lives
                found[2] += 60_000_000 * lives * row.rank
                found[3] += 60_000_000 * lives * row.rank * (row.state is TaskState.RUNNING)
    return [
        SpanGroup(day, key, begun, tuple(sums))
        for (day, key), (begun, *sums) in sorted(groups.items())
    ]


@pytest.mark.parametrize("seed", range(2))
async def test_the_sums_are_those_of_counting_each_minute(store: Store, seed: int) -> None:
    random = Random(seed)
    rows = jobs(random)
    await put(store, *rows)
    for by, daily in product(((), ("state",), ("state", "ended")), (False, True)):
        since = MIDNIGHT + random.randrange(-2000, 1000) * MINUTE
        until = since + random.randrange(1, 4000) * MINUTE
        running = (Where("state", Op.IN, [TaskState.RUNNING]),)
        spans = (Span(), Span(weight="rank"), Span(weight="rank", where=running))
        query = SpanQuery("created_at", "deadline_at", since, until, spans, by, daily)
        async with store.transaction() as tx:
            found = await tx.span_sums(Job, query)
        # A life that ended at the beginning of the period may leave a group of zeros.
        assert [each for each in found if each.begun or any(each.sums)] == expected(rows, query)


async def test_spans_are_parts_of_lives_and_see_the_transactions_own_writes(store: Store) -> None:
    hour = timedelta(hours=1)
    row = a_job("j1", created_at=START, deadline_at=START + hour, rank=2)
    other = a_job("j2", created_at=START, deadline_at=None, rank=3)
    period = (START - hour, START + 2 * hour)
    spans = (
        Span(end="deadline_at"),
        # Before the life begins, and after it has ended, nothing counts.
        Span(begin="deadline_at"),
        Span(begin="created_at", end="created_at", weight="rank"),
    )
    query = SpanQuery("created_at", "deadline_at", *period, spans, ("job_id",))
    async with store.transaction() as tx:
        tx.put(row, other)
        found = await tx.span_sums(Job, query)
        one = 3_600_000_000
        assert found == [
            SpanGroup(None, ("j1",), 1, (one, 0, 0)),
            SpanGroup(None, ("j2",), 1, (2 * one, 2 * one, 0)),
        ]
        only = SpanQuery(
            "created_at", "deadline_at", *period, spans, where=[Where("rank", Op.EQ, 2)]
        )
        assert await tx.span_sums(Job, only) == [SpanGroup(None, (), 1, (one, 0, 0))]
        # The life of a row without a beginning has not begun.
        turned = SpanQuery("deadline_at", "created_at", *period, spans, ("job_id",), limit=1)
        assert await tx.span_sums(Job, turned) == [SpanGroup(None, ("j1",), 1, (0, 0, 0))]


async def test_unknown_and_nullable_columns_are_refused(store: Store) -> None:
    query = SpanQuery("created_at", "deadline_at", START, START, (Span(weight="size"),))
    async with store.transaction() as tx:
        with pytest.raises(ValueError, match="no column 'size'"):
            await tx.span_sums(Job, query)
        nullable = SpanQuery("created_at", "deadline_at", START, START, (), ("client_key",))
        with pytest.raises(ValueError, match="client_key may be NULL"):
            await tx.span_sums(Job, nullable)
        assert await tx.select(Slot) == []
