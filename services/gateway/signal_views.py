"""Series and utilization as JSON: what the monitor answers, and what programs reported."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from libs.contracts import messages as m
from services.gateway.json_values import json_number, rfc3339
from services.gateway.rows import MetricsRow

Json = dict[str, Any]
FLOAT_BYTES = 4


def sampled(series: m.Series) -> Json:
    """A series that the monitor answered."""
    begin, step = series.begins_at.timestamp(), series.step_seconds
    columns = zip(
        _floats(series.averages), _floats(series.minima), _floats(series.maxima), strict=True
    )
    return {
        "signal": series.signal,
        "source": "sampled",
        "node": series.node_id,
        "gpu": series.gpu,
        "attempt": series.attempt or None,
        "step_seconds": step,
        "points": [
            _point(begin + place * step, average, low, high)
            for place, (average, low, high) in enumerate(columns)
            if not math.isnan(average)
        ],
    }


def reported(
    row: MetricsRow,
    signals: Collection[str],
    begin: datetime,
    end: datetime,
    attempt: int | None,
) -> Iterator[Json]:
    """What a rank's program reported, as one series for each name and attempt."""
    found: dict[tuple[str, int], list[Json]] = {}
    for of, at_s, values in row.points:
        if not begin.timestamp() <= at_s < end.timestamp() or attempt not in (None, of):
            continue
        for name, value in values.items():
            if not signals or name in signals:
                shown = json_number(value)
                found.setdefault((name, of), []).append(_point(at_s, shown, shown, shown))
    for (name, of), points in sorted(found.items()):
        yield {
            "signal": name,
            "source": "reported",
            "node": None,
            "gpu": None,
            "attempt": of,
            "step_seconds": None,
            "points": points,
        }


def node_utilization(found: m.NodeUtilization) -> Json:
    """The newest sample of a node."""
    return {
        "node": found.node_id,
        "sampled_at": rfc3339(found.sampled_at),
        "cpu_percent": found.values.cpu_percent,
        "memory_used_bytes": found.values.memory_used_bytes,
        "memory_total_bytes": found.values.memory_total_bytes,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "gpu_percent": gpu.values.gpu_percent,
                "gpu_memory_used_bytes": gpu.values.gpu_memory_used_bytes,
                "gpu_memory_total_bytes": gpu.values.gpu_memory_total_bytes,
                "gpu_power_watts": gpu.values.gpu_power_watts,
                "gpu_temperature_celsius": gpu.values.gpu_temperature_celsius,
            }
            for gpu in found.gpus
        ],
    }


def task_utilization(found: m.TaskUtilization) -> Json:
    """The newest samples of a task."""
    return {
        "task": found.task_id,
        "attempt": found.attempt,
        "sampled_at": rfc3339(found.sampled_at),
        "ranks": found.ranks,
        "gpus": found.gpus,
        "cpu_cores": found.cpu_cores,
        "memory_bytes": found.memory_bytes,
        "gpu_percent": found.gpu_percent,
        "gpu_memory_used_bytes": found.gpu_memory_used_bytes,
    }


def _point(at_s: float, average: float | str, low: float | str, high: float | str) -> Json:
    return {"at_seconds": at_s, "average": average, "minimum": low, "maximum": high}


def _floats(data: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(data) // FLOAT_BYTES}f", data)
