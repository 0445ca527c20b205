"""What the routes for signals answer."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable, Values


class MetricPoint(TypedDict):
    """What a rank reported at one time, in seconds since 1970."""

    attempt: int
    at_seconds: float
    values: Values


class SeriesPoint(TypedDict):
    """One step of a series. Of what a program reported all three are the reported value."""

    at_seconds: float
    average: float | str
    minimum: float | str
    maximum: float | str


class SignalSeries(TypedDict):
    """One signal over time: sampled by the platform, or reported by the program. A step without
    a point is a gap."""

    signal: str
    source: Literal["sampled", "reported"]
    # Of what was sampled: where, and of which GPU there, if it is of one.
    node: str | None
    gpu: int | None
    attempt: int | None
    # The distance of points; null: as the program reported.
    step_seconds: int | None
    points: list[SeriesPoint]


class RankMetrics(TypedDict):
    """What one rank reported: the newest values, and a thinned history. With ``series``, all that
    is known of the rank as series."""

    rank: int
    attempt: int
    at: str
    latest: Values
    points: list[MetricPoint]
    series: NotRequired[list[SignalSeries]]


class MetricsPage(TypedDict):
    """One page of ranks. ``series_problem``: why sampled series are missing."""

    items: list[RankMetrics]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
    series_problem: NotRequired[str]


class NodeMetrics(TypedDict):
    """What was sampled of one node."""

    node: str
    series: list[SignalSeries]


class GpuUtilization(TypedDict):
    """The newest sample of one GPU. Null: not measured."""

    index: int
    uuid: str
    model: str
    gpu_percent: float | None
    gpu_memory_used_bytes: float | None
    gpu_memory_total_bytes: float | None
    gpu_power_watts: float | None
    gpu_temperature_celsius: float | None


class NodeUtilization(TypedDict):
    """The newest sample of one node. Null: not measured."""

    node: str
    sampled_at: str
    cpu_percent: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    gpus: list[GpuUtilization]


class TaskUtilization(TypedDict):
    """The newest samples of all ranks of a task together. Null: not measured."""

    task: str
    attempt: int
    sampled_at: str
    # How many ranks, and how many of their GPUs, were sampled.
    ranks: int
    gpus: int
    cpu_cores: float | None
    memory_bytes: float | None
    # The mean of its GPUs.
    gpu_percent: float | None
    gpu_memory_used_bytes: float | None


class Utilization(TypedDict):
    """What is in use now, of the nodes and live tasks that were asked for and were sampled within
    the last minute."""

    nodes: list[NodeUtilization]
    tasks: list[TaskUtilization]
