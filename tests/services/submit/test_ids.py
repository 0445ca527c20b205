from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.ids import is_task_id
from services.submit.ids import TimeSortedIds

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.integers(-5, 5), max_size=30), st.integers())
def test_ids_are_well_formed_unique_and_sorted_even_if_the_clock_goes_back(
    steps: list[int], seed: int
) -> None:
    make, now, made = TimeSortedIds(Random(seed).getrandbits), START, list[str]()
    for step in steps:
        now += timedelta(milliseconds=step)
        made.append(make(now))
    assert made == sorted(set(made))
    assert all(is_task_id(one) for one in made)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1)), st.integers(1, 10**12))  # noqa: DTZ001 - hypothesis adds the zone below
def test_text_order_is_time_order_between_processes(time: datetime, later_ms: int) -> None:
    first = TimeSortedIds(lambda bits: (1 << bits) - 1)
    second = TimeSortedIds(lambda _bits: 0)
    now = time.replace(tzinfo=UTC)
    assert first(now) < second(now + timedelta(milliseconds=later_ms))
