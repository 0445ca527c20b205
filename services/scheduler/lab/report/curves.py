"""Reduces a run of any length to the small curves of the report.

``study.py`` uses it.
"""

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
    """Distributions of one size class: values against the fraction of jobs at or below them."""

    label: str
    jobs: int
    jct: Points
    wait: Points


@dataclass(frozen=True, slots=True)
class Curves:
    """The numbers and the curves of one policy."""

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
            SizeCurves(size_label(low, high), len(jobs), cdf(map(jct, jobs)), cdf(map(wait, jobs)))
            for low, high, jobs in by_size(ended, record.capacity)
        ),
        users=_ranked(slowdowns),
        jct=cdf(map(jct, ended)),
        wait=cdf(map(wait, ended)),
    )


def size_label(low: int, high: int) -> str:
    """Return the label of a size class, such as ``1 node`` or ``3-4 nodes``."""
    if low == high:
        return counted(low, "node")
    return f"{low}\u2013{high} nodes"


def cdf(values: Iterable[float]) -> Points:
    """Return evenly spaced points: a value, and the fraction of all values at or below it."""
    ordered = sorted(values)
    return [
        (ordered[index], fraction) for index, fraction in _spaced_indexes(len(ordered), CDF_POINTS)
    ]


def over_time(timeline: Timeline, factor: float) -> Points:
    """Return means over at most ``TIME_POINTS`` equal intervals, each at its interval's middle."""
    bins = timeline.bins()
    bins_per_point = max(1, math.ceil(len(bins) / TIME_POINTS))
    found: Points = []
    for start in range(0, len(bins), bins_per_point):
        part = bins[start : start + bins_per_point]
        middle = (start + len(part) / 2.0) * timeline.width_s
        found.append((middle, factor * sum(part) / len(part)))
    return found


def _ranked(ordered: Sequence[float]) -> Points:
    """Return the users' slowdowns in ascending order, each against its fraction of all users."""
    return [
        (fraction, ordered[index]) for index, fraction in _spaced_indexes(len(ordered), USERS_MAX)
    ]


def _spaced_indexes(count: int, points_max: int) -> list[tuple[int, float]]:
    """Return evenly spaced indexes below ``count``, each with the fraction of values up to it."""
    steps = min(count, points_max)
    indexes = sorted({round((count - 1) * step / max(1, steps - 1)) for step in range(steps)})
    return [(index, (index + 1) / count) for index in indexes]
