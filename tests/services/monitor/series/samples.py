"""Samples and series in tests."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from libs.contracts.messages import (
    GpuSample,
    GpuValues,
    NodeSampled,
    NodeValues,
    RankSample,
    RankValues,
    ReadSeries,
    Series,
)
from tests.kit.clock import at

NODE = "n1"
TASK = "t1"


def a_rank(
    rank: int = 0,
    *,
    gpus: Sequence[int] = (),
    attempt: int = 1,
    cores: float = 1.0,
    task_id: str = TASK,
) -> RankSample:
    return RankSample(
        task_id=task_id,
        attempt=attempt,
        rank=rank,
        gpus=tuple(gpus),
        values=RankValues(cpu_cores=cores, processes=1.0),
    )


def a_sample(
    seconds: float,
    *,
    cpu: float | None = 50.0,
    gpus: Sequence[float] = (),
    ranks: Sequence[RankSample] = (),
    node: str = NODE,
) -> NodeSampled:
    return NodeSampled(
        node_id=node,
        sampled_at=at(seconds),
        hostname="host",
        values=NodeValues(cpu_percent=cpu),
        gpus=tuple(
            GpuSample(
                index=index,
                uuid=f"GPU-{index}",
                model="H100",
                values=GpuValues(gpu_percent=percent, gpu_memory_used_bytes=100.0),
            )
            for index, percent in enumerate(gpus)
        ),
        ranks=tuple(ranks),
    )


def a_query(begin: float, end: float, step: int = 0, **more: object) -> ReadSeries:
    subject = {} if "task_id" in more else {"node_id": NODE}
    return ReadSeries.model_validate(
        {"begins_at": at(begin), "ends_at": at(end), "step_seconds": step, **subject, **more}
    )


def points_of(series: Series) -> dict[int, float]:
    """The averages that are there, by the seconds since the tests' beginning."""
    return _known(series, series.averages)


def lows_of(series: Series) -> dict[int, float]:
    return _known(series, series.minima)


def highs_of(series: Series) -> dict[int, float]:
    return _known(series, series.maxima)


def _known(series: Series, data: bytes) -> dict[int, float]:
    first = round((series.begins_at - at(0)).total_seconds())
    return {
        first + place * series.step_seconds: value
        for place, value in enumerate(array("f", data))
        if not math.isnan(value)
    }
