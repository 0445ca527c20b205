"""The rule's times follow how long the pool's tasks run, in steps, and only beyond the bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.disciplines.timeshare.rule import RULE, grant_budget
from services.scheduler.domain.disciplines.timeshare.tempo import STEPS, tempo_of, unit_of
from services.scheduler.domain.model.group_policy import Timeshare

MANY = 10**6
means = st.floats(0.0, 1e9)


@pytest.mark.parametrize(
    ("mean", "ends", "unit"),
    [
        # Nothing seen: 8,000 s are taken for granted.
        (3_600.0, 0, 1.0),
        (4_000.0, MANY, 1.0),
        (17_000.0, MANY, 1.0),
        (1_000.0, MANY, 0.25),
        (136_000.0, MANY, 8.0),
        # 50 ends of 1,000 s count as many as the 50 of 8,000 s: 4,500 s in the mean.
        (1_000.0, 50, 1.0),
        # 150 of 1,000 and 50 of 8,000: 2,750 s, .6875 of the bound; in steps of 1/16 octave .6873.
        (1_000.0, 150, 2.0 ** (-9 / 16)),
    ],
)
def test_units_worked_by_hand(mean: float, ends: int, unit: float) -> None:
    assert unit_of(mean, ends) == pytest.approx(unit, rel=1e-3)


@given(means, means, st.integers(0, MANY))
def test_units_grow_with_the_mean_and_step_only_a_little(one: float, two: float, ends: int) -> None:
    low, high = sorted((one, two))
    assert 0.0 < unit_of(low, ends) <= unit_of(high, ends)
    # A step is 4 %: nothing that people would see jumps.
    near = unit_of(low * 1.001, ends) / unit_of(low, ends)
    assert 1.0 <= near <= 2.0 ** (1.0 / STEPS) * 1.0001


def test_times_are_multiplied_and_nothing_else() -> None:
    numbers = Timeshare()
    fast = tempo_of(RULE, numbers, 0.25)
    assert fast.numbers == replace(
        numbers, slice_seconds_min=900.0, grant_after_seconds=21_600.0, hold_seconds=14_400.0
    )
    assert fast.rule == replace(
        RULE,
        delay_seconds_max=RULE.delay_seconds_max / 4,
        load_seconds=RULE.load_seconds / 4,
        tag_seconds_max=RULE.tag_seconds_max / 4,
        grant_seconds=225.0,
    )


def test_times_that_a_policy_sets_explicitly_are_kept() -> None:
    numbers = Timeshare(adapt_times=False)
    assert tempo_of(RULE, numbers, 0.25).numbers is numbers
    assert tempo_of(RULE, numbers, 8.0).rule is RULE


def test_the_account_of_grants_always_holds_a_few() -> None:
    # Grants of 15 s: the account still holds an hour and a half of 100 nodes.
    short = tempo_of(RULE, Timeshare(), 1 / 60)
    assert grant_budget(short.rule, short.numbers, 100.0).ceiling == 540_000.0
    # Grants of two hours: three hours.
    long = tempo_of(RULE, Timeshare(), 8.0)
    assert grant_budget(long.rule, long.numbers, 100.0).ceiling == 1_080_000.0
