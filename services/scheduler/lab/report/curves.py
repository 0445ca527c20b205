"""Reduces a run to the curves of the report, small however long the run was. For ``study.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts.wording import counted
from services.scheduler.lab.record import RunRecord, Timeline
from services.scheduler.lab.results import (
    Numbers,
    Private,
    jct,
    numbers,
    size_classes,
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
    classes = size_classes(record.capacity)
    by_class: list[tuple[list[float], list[float]]] = [([], []) for _ in classes]
    for job in ended:
        place = min((job.nodes - 1).bit_length(), len(classes) - 1)
        by_class[place][0].append(jct(job))
        by_class[place][1].append(wait(job))
    slowdowns = sorted(user_slowdowns(record, workload).values())
    return Curves(
        policy=record.policy,
        numbers=numbers(record, workload, private),
        utilisation=over_time(record.busy, 1.0 / record.capacity if record.capacity else 0.0),
        waiting=over_time(record.waiting, 1.0),
        sizes=tuple(
            SizeCurves(size_label(low, high), len(jcts), cdf(jcts), cdf(waits))
            for (low, high), (jcts, waits) in zip(classes, by_class, strict=True)
            if jcts
        ),
        users=_ranked(slowdowns),
        jct=cdf([jct(job) for job in ended]),
        wait=cdf([wait(job) for job in ended]),
    )


def size_label(low: int, high: int) -> str:
    """``1 node``, ``3-4 nodes``."""
    if low == high:
        return counted(low, "node")
    return f"{low}\u2013{high} nodes"


def cdf(values: Sequence[float]) -> Points:
    """Value and part of all values at or below it, at evenly spaced parts."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return []
    steps = min(count, CDF_POINTS)
    places = sorted({round((count - 1) * step / max(1, steps - 1)) for step in range(steps)})
    return [(ordered[place], (place + 1) / count) for place in places]


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
    count = len(ordered)
    steps = min(count, USERS_MAX)
    places = sorted({round((count - 1) * step / max(1, steps - 1)) for step in range(steps)})
    return [((place + 1) / count, ordered[place]) for place in places]
