from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.placement.bitsets import (
    bit_range,
    bit_string,
    gpus_of,
    lowest_bits,
    lowest_members,
    mask_of,
    positions,
    union,
)


@given(st.sets(st.integers(0, 70)))
def test_masks_and_indices_are_the_same(gpus: set[int]) -> None:
    assert gpus_of(mask_of(gpus)) == tuple(sorted(gpus))
    assert list(positions(mask_of(gpus))) == sorted(gpus)


@given(st.integers(0, 2**16 - 1), st.integers(0, 16))
def test_lowest_keeps_the_lowest_bits(mask: int, count: int) -> None:
    count = min(count, mask.bit_count())
    assert gpus_of(lowest_bits(mask, count)) == gpus_of(mask)[:count]


@given(st.sets(st.integers(0, 300)), st.integers(0, 40))
def test_the_first_members_few_or_many(members: set[int], count: int) -> None:
    assert lowest_members(mask_of(members), count) == sorted(members)[:count]


@given(st.lists(st.sets(st.integers(0, 70)), max_size=4))
def test_joined_sets_have_all_members(sets: list[set[int]]) -> None:
    assert gpus_of(union(map(mask_of, sets))) == tuple(
        sorted({each for one in sets for each in one})
    )


def test_a_span_is_a_range_and_a_set_can_be_written_out() -> None:
    assert gpus_of(bit_range(2, 5)) == (2, 3, 4)
    assert bit_range(3, 3) == 0
    assert bit_string(mask_of({0, 2}), 5) == "10100"
    assert bit_string(0, 0) == "0"
