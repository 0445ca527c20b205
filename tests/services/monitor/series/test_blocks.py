"""Blocks of points: what is entered comes back, gaps stay gaps, and coarser points are true."""

from __future__ import annotations

import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.monitor.domain.blocks import (
    POINTS,
    Block,
    BlockKey,
    SignalKey,
    begin_of,
    decoded,
    encoded,
    node_subject,
)
from services.monitor.domain.resolution import Resolution, check_steps, choose

CPU, GPU = SignalKey("cpu_percent"), SignalKey("gpu_percent", 3)
FINE, COARSE = 10, 60
VALUES = st.floats(-1e6, 1e6, width=32)


def a_place(step: int = FINE, begins: int = 0) -> BlockKey:
    return BlockKey(node_subject("n1"), "", step, begins)


@given(st.dictionaries(st.integers(0, POINTS - 1), VALUES))
def test_what_is_stored_is_what_was_entered(values: dict[int, float]) -> None:
    block = Block(a_place(), gpus={2: (0, 1), 5: ()})
    for point, value in values.items():
        block.put(point * FINE + 3.5, {CPU: value, GPU: -value})
    again = decoded(block.place, encoded(block))
    assert again.gpus == block.gpus
    assert set(again.points) == set(block.points)
    for key in block.points:
        assert [*map(repr, again.points[key].averages)] == [*map(repr, block.points[key].averages)]
    if values:
        kept = again.points[CPU].averages
        assert {p: v for p, v in enumerate(kept) if not math.isnan(v)} == values


@given(st.lists(st.dictionaries(st.integers(0, POINTS - 1), VALUES), min_size=1, max_size=6))
def test_a_coarser_point_has_the_average_and_the_bounds_of_the_finer_ones(
    blocks: list[dict[int, float]],
) -> None:
    coarse = Block(a_place(COARSE))
    every: dict[int, float] = {}
    for number, values in enumerate(blocks):
        begins = number * POINTS * FINE
        fine = Block(a_place(FINE, begins))
        for point, value in values.items():
            fine.put(begins + point * FINE, {CPU: value})
            every[begins + point * FINE] = value
        coarse.fold(fine)
        # A fold that is repeated after a crash changes nothing.
        coarse.fold(fine)
    found = coarse.points.get(CPU)
    for point in range(POINTS):
        inside = [v for at, v in every.items() if at // COARSE == point]
        if not inside:
            assert found is None or math.isnan(found.averages[point])
            continue
        assert found is not None
        assert found.averages[point] == pytest.approx(sum(inside) / len(inside), rel=1e-5, abs=1e-2)
        assert (found.lows[point], found.highs[point]) == (min(inside), max(inside))
    again = decoded(coarse.place, encoded(coarse))
    if found is not None:
        assert [*map(repr, again.points[CPU].lows)] == [*map(repr, found.lows)]
        assert [*map(repr, again.points[CPU].highs)] == [*map(repr, found.highs)]


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", zlib.compress(b"\x02\0\0\0{}"), encoded(Block(a_place()))[:-3]]
)
def test_damaged_content_is_an_error_and_no_series(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot be read|bytes for"):
        decoded(a_place(), data)


def test_blocks_follow_each_other() -> None:
    assert [begin_of(FINE, at) for at in (0, 599.9, 600, 1199)] == [0, 0, 600, 600]


def test_a_block_of_an_earlier_leader_is_completed_and_not_overwritten() -> None:
    before, after = Block(a_place()), Block(a_place())
    before.put(0, {CPU: 1.0, GPU: 9.0})
    before.put(10, {CPU: 2.0})
    after.put(10, {CPU: 22.0})
    after.complete(before)
    assert [*after.points[CPU].averages[:2]] == [1.0, 22.0]
    assert after.points[GPU].averages[0] == 9.0


STEPS = (Resolution(10, 3600.0), Resolution(60, 86_400.0), Resolution(600, 14 * 86_400.0))


@pytest.mark.parametrize(
    ("ago", "until", "wanted", "base", "step"),
    [
        (600, 0, 0, 10, 10),
        (600, 0, 60, 60, 60),
        (600, 0, 90, 60, 120),
        (600, 0, 1, 10, 10),
        # So many points of 10 s would not fit.
        (3600, 0, 0, 10, 20),
        (86_400, 0, 0, 60, 480),
        # The finer points of that time are not kept any more.
        (7200, 6600, 0, 60, 60),
        (2 * 86_400, 2 * 86_400 - 600, 0, 600, 600),
        (99 * 86_400, 99 * 86_400 - 600, 0, 600, 600),
    ],
)
def test_the_step_fits_the_question(
    ago: int, until: int, wanted: int, base: int, step: int
) -> None:
    now = 100 * 86_400.0
    choice = choose(
        STEPS,
        begins_s=now - ago,
        ends_s=now - until,
        now_s=now,
        wanted_s=wanted,
        points_max=200,
    )
    assert (choice.base_s, choice.step_s) == (base, step)


@pytest.mark.parametrize("steps", [(10, 15), (10, 10), (10, 70), (10, 60, 61)])
def test_steps_that_do_not_fit_into_each_other_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"does not follow .* use "):
        check_steps(steps[:2] if len(steps) == 2 else steps[1:])
    check_steps((10, 60, 600))
