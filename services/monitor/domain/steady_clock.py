"""Time that passes evenly, whatever the machine's clock is set to. Pure.

Durations that rules compare are counted in steady seconds. They advance with the clock, but in one
step by no more than ``GAP_SECONDS_MAX``: a clock that jumps ahead adds so much, one that is set
back nothing, and of a time in which no monitor ran so much counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

GAP_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class SteadyClockRow:
    """The one row of the clock: what it showed, and the machine's time then."""

    name: str
    elapsed_s: float
    wall_at: datetime


CLOCK = "monitor"


def elapsed(row: SteadyClockRow | None, now: datetime) -> float:
    """What the clock shows at a time of the machine."""
    if row is None:
        return 0.0
    passed = (now - row.wall_at).total_seconds()
    return row.elapsed_s + min(max(0.0, passed), GAP_SECONDS_MAX)


def advanced(row: SteadyClockRow | None, now: datetime) -> SteadyClockRow:
    """The row as it is written at that time."""
    return SteadyClockRow(CLOCK, elapsed(row, now), now)
