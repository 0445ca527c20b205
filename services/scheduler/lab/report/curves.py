"""Reduces a run to the curves of the report, small however long the run was. For ``study.py``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libs.contracts.wording import counted
from services.scheduler.lab.record import RunRecord, Timeline
from services.scheduler.lab.results import (
    Numbers,
    Private,
    by_size,
    jct,
    numbers,
    user_slowdowns,
    wait,
)
from services.scheduler.lab.workload import Workload

Points = list[tuple[float, float]]
TIME_POINTS = 140
CDF_POINTS = 160
USERS_MAX = 400


@dataclass(frozen=True, slots=True)
class SizeCurves:
    """Distributions of one size class: values against the part of jobs at or below them."""

    label: str
    jobs: int
    jct: Points
    wait: Points


@dataclass(frozen=True, slots=True)
class Curves:
    """One policy: its numbers and its lines."""

    policy: str
    numbers: Numbers
    utilisation: Points
    waiting: Points
    sizes: tuple[SizeCurves, ...]
    users: Points
    jct: Points
    wait: Points


def curves(
    record: RunRecord, workload: Workload, private: dict[str, Private] | None = None
) -> Curves:
    """Reduce a run; the record is not needed afterwards."""
    ended = [job for job in record.jobs if not math.isnan(job.finish_s)]
    slowdowns = sorted(user_slowdowns(record, workload).values())
    return Curves(
        policy=record.policy,
        numbers=numbers(record, workload, private),
        utilisation=over_time(record.busy, 1.0 / record.capacity if record.capacity else 0.0),
        waiting=over_time(record.waiting, 1.0),
        sizes=tuple(
            SizeCurves(size_label(low, high), len(of), cdf(map(jct, of)), cdf(map(wait, of)))
            for low, high, of in by_size(ended, record.capacity)
        ),
        users=_ranked(slowdowns),
        jct=cdf(map(jct, ended)),
        wait=cdf(map(wait, ended)),
    )


def size_label(low: int, high: int) -> str:
    """``1 node``, ``3-4 nodes``."""
    if low == high:
        return counted(low, "node")
    return f"{low}\u2013{high} nodes"


def cdf(values: Iterable[float]) -> Points:
    """Value and part of all values at or below it, at evenly spaced parts."""
    ordered = sorted(values)
    return [(ordered[place], part) for place, part in _places(len(ordered), CDF_POINTS)]


def over_time(line: Timeline, factor: float) -> Points:
    """Means over at most ``TIME_POINTS`` equal stretches, each at its middle."""
    bins = line.bins()
    each = max(1, math.ceil(len(bins) / TIME_POINTS))
    found: Points = []
    for start in range(0, len(bins), each):
        part = bins[start : start + each]
        middle = (start + len(part) / 2.0) * line.width_s
        found.append((middle, factor * sum(part) / len(part)))
    return found


def _ranked(ordered: Sequence[float]) -> Points:
    """Users from the best served to the worst, as parts of all users."""
    return [(part, ordered[place]) for place, part in _places(len(ordered), USERS_MAX)]


def _places(count: int, points_max: int) -> list[tuple[int, float]]:
    """Evenly spaced indexes of so many values, each with the part of them up to it."""
    steps = min(count, points_max)
    places = sorted({round((count - 1) * step / max(1, steps - 1)) for step in range(steps)})
    return [(place, (place + 1) / count) for place in places]
