"""Metrics that ranks report: the newest values, and a history of bounded length. Pure.

When the history is full every second point goes and from then on half as many are kept: the whole
run stays visible, ever more coarsely. A row is bounded in points, names and values together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from services.gateway.rows import MetricsRow

Sample = tuple[datetime, Mapping[str, float]]
# Fewer points show no course.
POINTS_MIN = 2


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
    held = sum(len(values) for _, _, values in points)
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
            held = sum(len(each) for _, _, each in points)
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
    """Every reported name; of the others, the first by name while there is room."""
    room = max(0, names_max - len(reported))
    others = sorted(name for name in latest if name not in reported)[:room]
    return {name: latest[name] for name in others} | dict(reported)
