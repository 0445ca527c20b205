"""Metrics that ranks report: the newest values, and a history of bounded length. Pure.

When the history is full every second point goes and from then on half as many are kept: the whole
run stays visible, ever more coarsely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from services.gateway.rows import MetricsRow

Sample = tuple[datetime, Mapping[str, float]]


def add(
    row: MetricsRow | None,
    *,
    task_id: str,
    rank: int,
    attempt: int,
    samples: Sequence[Sample],
    points_max: int,
) -> MetricsRow | None:
    """The row with these samples; the same row if all of them came before."""
    for at, values in samples:
        if row is not None and (attempt, at) <= (row.attempt, row.at):
            continue
        row = row or MetricsRow(task_id, rank, attempt, at, {}, [], stride=1, count=0)
        points, stride = row.points, row.stride
        if row.count % stride == 0:
            point: list[Any] = [attempt, round(at.timestamp(), 3), dict(values)]
            points = [*points, point]
        if len(points) > points_max:
            points, stride = points[::2], stride * 2
        row = replace(
            row,
            attempt=attempt,
            at=at,
            latest={**row.latest, **values},
            points=points,
            stride=stride,
            count=row.count + 1,
        )
    return row
