from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.disciplines.timeshare.gittins import gittins_index, mean_residual

CEILING = 1e10
hazard = st.one_of(st.sampled_from([0.0, 1e-12, 1.0]), st.floats(0.0, 1.0))


@st.composite
def bins(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Hazards, and widths that may only grow from the second on."""
    hazards = draw(st.lists(hazard, min_size=1, max_size=12))
    first, second = draw(st.floats(1e-9, 50.0)), draw(st.floats(1e-3, 50.0))
    ratio = draw(st.floats(1.0, 2.0))
    return hazards, [first, *(second * ratio**k for k in range(len(hazards) - 1))]


def by_definition(hazards: list[float], widths: list[float], steps: int) -> float:
    """min over every D of a fine grid of E[min(R, D)] / P(R <= D), each from the masses."""
    masses: list[tuple[float, float]] = []  # when, how many
    ends: list[float] = []
    alive, start = 1.0, 0.0
    for h, width in zip(hazards, widths, strict=True):
        masses += [(start + width * (k + 0.5) / steps, alive * h / steps) for k in range(steps)]
        ends += [start + width * (k + 1) / steps for k in range(steps)]
        alive, start = alive * (1 - h), start + width
    best = CEILING
    for end in ends:
        ended = sum(mass for when, mass in masses if when < end)
        spent = sum(mass * min(when, end) for when, mass in masses if when < end)
        if ended > 0.0:
            best = min(best, (spent + (1 - ended) * end) / ended)
    return best


def test_a_task_that_surely_ends_in_the_next_bin() -> None:
    # 10 s wide, ends spread evenly: 5 s of running for one end.
    assert gittins_index([1.0, 0.5], [10.0, 20.0], CEILING) == 5.0


def test_worked_by_hand() -> None:
    # To the first edge: (0.5 * 5 + 0.5 * 10) / 0.5 = 15.
    # To the second: half lives 10 s more and ends on average in its middle: (7.5 + 5) / 1 = 12.5.
    assert gittins_index([0.5, 1.0], [10.0, 20.0], CEILING) == 15.0 - 15.0 / 2 + 20.0 / 4
    # A second bin worse than the first: evaluating again after the first is better.
    assert gittins_index([0.5, 0.1], [10.0, 20.0], CEILING) == 15.0
    # The mean: half ends at 5; the others go on to 10 + 10.
    assert mean_residual([0.5, 1.0], [10.0, 20.0], CEILING) == 0.5 * 5 + 0.5 * 20


def test_bins_in_which_no_task_ends_give_the_ceiling() -> None:
    assert gittins_index([0.0, 0.0], [10.0, 20.0], CEILING) == CEILING
    assert gittins_index([], [], CEILING) == CEILING
    assert mean_residual([0.0, 0.0], [10.0, 20.0], CEILING) == 30.0


@settings(max_examples=30, deadline=None)
@given(bins())
def test_the_index_equals_its_definition(case: tuple[list[float], list[float]]) -> None:
    hazards, widths = case
    # No time inside a bin is better than its end: the coarse answer equals the fine one.
    slow = by_definition(hazards, widths, steps=8)
    assert gittins_index(hazards, widths, CEILING) == pytest.approx(slow, rel=1e-6)


@settings(max_examples=50)
@given(bins())
def test_stopping_early_changes_nothing(case: tuple[list[float], list[float]]) -> None:
    hazards, widths = case
    alive, ended, spent, best = 1.0, 0.0, 0.0, CEILING
    for h, width in zip(hazards, widths, strict=True):
        spent += alive * width * (1 - h / 2)
        ended += alive * h
        alive *= 1 - h
        best = min(best, spent / ended) if ended > 0 else best
    assert gittins_index(hazards, widths, CEILING) == pytest.approx(best, rel=1e-9)


@settings(max_examples=50)
@given(bins())
def test_the_index_is_at_most_the_mean_of_a_task_that_ends(
    case: tuple[list[float], list[float]],
) -> None:
    hazards, widths = case
    hazards[-1] = 1.0
    index, mean = gittins_index(hazards, widths, CEILING), mean_residual(hazards, widths, CEILING)
    assert 0.0 < index <= mean * (1 + 1e-6)
