"""Metrics that ranks report: the newest values, and a history of bounded length. Pure.

When the history is full every second point goes and from then on half as many are kept: the whole
run stays visible, ever more coarsely. A row is bounded in points, names and values together.

The history has two rows: a report is added to the short one, its tail, which is now and then moved
into the long one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from services.gateway.rows import MetricsRow, MetricTailRow, ProgressRow

Sample = tuple[datetime, Mapping[str, float]]
# Fewer points show no trend.
POINTS_MIN = 2
# A tail with more points is moved.
TAIL_POINTS_MAX = 16
# What a task's progress shows: these first, then others by name, so many in all.
PROGRESS_FIRST = ("step", "epoch", "loss", "lr")
PROGRESS_NAMES_MAX = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one row holds."""

    points_max: int
    # Of the newest values; a report has no more names either.
    names_max: int
    # Of all points together.
    values_max: int


def add(
    row: MetricsRow | None,
    *,
    task_id: str,
    rank: int,
    attempt: int,
    samples: Sequence[Sample],
    limits: Limits,
) -> MetricsRow | None:
    """The row with these samples; the same row if all of them came before.

    Costs time in proportion to the samples and to what the row may hold.
    """
    newest = (row.attempt, row.at) if row else None
    latest = dict(row.latest) if row else {}
    points = list(row.points) if row else []
    stride, count = (row.stride, row.count) if row else (1, 0)
    held = _values(points)
    reported: dict[str, float] = {}
    for at, values in samples:
        if newest is not None and (attempt, at) <= newest:
            continue
        newest = (attempt, at)
        if count % stride == 0:
            points.append((attempt, round(at.timestamp(), 3), dict(values)))
            held += len(values)
        while len(points) > limits.points_max or (
            held > limits.values_max and len(points) > POINTS_MIN
        ):
            points, stride = points[::2], stride * 2
            held = _values(points)
        reported |= values
        count += 1
    if newest is None or (row is not None and newest == (row.attempt, row.at)):
        return row
    return MetricsRow(
        task_id,
        rank,
        attempt=newest[0],
        at=newest[1],
        latest=_newest(latest, reported, limits.names_max),
        points=points,
        stride=stride,
        count=count,
    )


def _newest(
    latest: Mapping[str, float], reported: Mapping[str, float], names_max: int
) -> dict[str, float]:
    """Every reported name; of the others, the first by name up to the maximum."""
    others_max = max(0, names_max - len(reported))
    others = sorted(name for name in latest if name not in reported)[:others_max]
    return {name: latest[name] for name in others} | dict(reported)


def progress(row: MetricsRow | MetricTailRow) -> ProgressRow:
    """The few of the newest values that lists of tasks show, in their order."""
    names = sorted(row.latest, key=progress_order)[:PROGRESS_NAMES_MAX]
    latest = {name: row.latest[name] for name in names}
    return ProgressRow(row.task_id, row.attempt, row.at, latest)


def progress_order(name: str) -> tuple[int, str]:
    """The place of a value in a task's progress."""
    known = name in PROGRESS_FIRST
    return (PROGRESS_FIRST.index(name) if known else len(PROGRESS_FIRST), name)


def whole(body: MetricsRow | None, tail: MetricTailRow | None) -> MetricsRow | None:
    """The history as one row. A body that is newer than its tail was written by a process that
    knows of no tails, while versions change."""
    if body is None or tail is None or (body.attempt, body.at) > (tail.attempt, tail.at):
        return body
    return replace(
        body,
        attempt=tail.attempt,
        at=tail.at,
        latest=tail.latest,
        points=[*body.points, *tail.points],
        stride=tail.stride,
        count=tail.count,
    )


def tail_of(body: MetricsRow) -> MetricTailRow:
    """An empty tail."""
    return MetricTailRow(
        body.task_id,
        body.rank,
        attempt=body.attempt,
        at=body.at,
        latest=body.latest,
        points=[],
        stride=body.stride,
        count=body.count,
        points_before=len(body.points),
        values_before=_values(body.points),
    )


def extended(
    tail: MetricTailRow, *, attempt: int, samples: Sequence[Sample], limits: Limits
) -> MetricTailRow | None:
    """The tail with these samples; the same tail if all of them came before; None if the history
    must be thinned or the tail be moved."""
    points_max = min(TAIL_POINTS_MAX, limits.points_max - tail.points_before)
    values_max = limits.values_max - tail.values_before
    before = MetricsRow(
        tail.task_id,
        tail.rank,
        attempt=tail.attempt,
        at=tail.at,
        latest=tail.latest,
        points=tail.points,
        stride=tail.stride,
        count=tail.count,
    )
    after = add(
        before,
        task_id=tail.task_id,
        rank=tail.rank,
        attempt=attempt,
        samples=samples,
        limits=Limits(max(1, points_max), limits.names_max, max(1, values_max)),
    )
    if after is before or after is None:
        return tail
    thinned = after.stride != tail.stride
    if thinned or len(after.points) > points_max or _values(after.points) > values_max:
        return None
    return replace(
        tail,
        attempt=after.attempt,
        at=after.at,
        latest=after.latest,
        points=after.points,
        count=after.count,
    )


def _values(points: Sequence[tuple[int, float, Mapping[str, float]]]) -> int:
    return sum(len(values) for _, _, values in points)
