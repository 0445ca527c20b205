"""Scales the rule's times to the running times of a pool's tasks.

Where tasks run for minutes, an hour's slice is longer than the whole queue; where they run for
days, it is very short. Between the two bounds, where most pools are, the times are as they are set;
beyond them they shrink or grow in proportion. Disciplines and budgets read them at each use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2

from services.scheduler.domain.disciplines.timeshare.rule import RuleSettings
from services.scheduler.domain.model.group_policy import Timeshare

# The mean running time within which times are as they are set, in seconds.
SHORT_SECONDS, LONG_SECONDS = 4_000.0, 17_000.0
# Before any task ended, the mean counts this many ends of this many seconds.
PRIOR_ENDS, PRIOR_SECONDS = 50.0, 8_000.0
# Steps per octave, so that there are few versions of the numbers.
STEPS = 16.0


@dataclass(frozen=True, slots=True)
class Tempo:
    """The numbers of the rule and of the group, with times in one unit."""

    rule: RuleSettings
    numbers: Timeshare


def unit_of(mean_seconds: float, ends: int) -> float:
    """The factor of all times, from the mean running time of this many ended tasks."""
    total = mean_seconds * ends + PRIOR_SECONDS * PRIOR_ENDS
    mean = max(total / (ends + PRIOR_ENDS), 1.0)
    if SHORT_SECONDS <= mean <= LONG_SECONDS:
        return 1.0
    exact = mean / SHORT_SECONDS if mean < SHORT_SECONDS else mean / LONG_SECONDS
    return 2.0 ** (round(STEPS * log2(exact)) / STEPS)


@lru_cache(maxsize=1024)
def tempo_of(rule: RuleSettings, numbers: Timeshare, unit: float) -> Tempo:
    """The numbers in this unit."""
    if unit == 1.0 or not numbers.adapt_times:
        return Tempo(rule, numbers)
    return Tempo(
        replace(
            rule,
            delay_seconds_max=unit * rule.delay_seconds_max,
            load_seconds=unit * rule.load_seconds,
            tag_seconds_max=unit * rule.tag_seconds_max,
            grant_seconds=unit * rule.grant_seconds,
        ),
        replace(
            numbers,
            slice_seconds_min=unit * numbers.slice_seconds_min,
            grant_after_seconds=unit * numbers.grant_after_seconds,
            hold_seconds=unit * numbers.hold_seconds,
        ),
    )
