"""The newest samples as Prometheus metrics, on the monitor's ``/metrics``.

GPUs have the names, units and labels of NVIDIA's DCGM exporter, so that its dashboards read them.
The labels are bounded by the cluster: nodes, and GPUs by node. Metrics by task are bounded by a
setting, and off by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from libs.contracts.messages import GpuSample, GpuValues, NodeValues
from services.monitor.domain.newest import Newest

MIB = 2**20
PERCENT = 100.0
GPU_LABELS = ("gpu", "UUID", "modelName", "Hostname", "node")


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric of nodes, by its field of ``NodeValues``."""

    name: str
    text: str
    field: str
    divisor: float = 1.0


NODES = (
    Exported("cpu_utilization_ratio", "Busy part of all processors", "cpu_percent", PERCENT),
    Exported("load1", "Running and waiting processes over a minute", "load_processes"),
    Exported("memory_used_bytes", "Memory in use", "memory_used_bytes"),
    Exported("memory_size_bytes", "Memory of the node", "memory_total_bytes"),
    Exported("disk_used_bytes", "Space in use where the data folder is", "disk_used_bytes"),
    Exported("disk_size_bytes", "Space where the data folder is", "disk_total_bytes"),
    Exported("disk_read_bytes_per_second", "Read from disks", "disk_read_bytes_per_second"),
    Exported("disk_written_bytes_per_second", "Written to disks", "disk_write_bytes_per_second"),
    Exported(
        "network_receive_bytes_per_second",
        "Received by network devices",
        "network_receive_bytes_per_second",
    ),
    Exported(
        "network_transmit_bytes_per_second",
        "Sent by network devices",
        "network_transmit_bytes_per_second",
    ),
)


def _free_mib(values: GpuValues) -> float | None:
    used, total = values.gpu_memory_used_bytes, values.gpu_memory_total_bytes
    return None if used is None or total is None else (total - used) / MIB


def _used_mib(values: GpuValues) -> float | None:
    used = values.gpu_memory_used_bytes
    return None if used is None else used / MIB


# DCGM's names, units and texts.
GPUS: Mapping[str, tuple[str, Callable[[GpuValues], float | None]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("GPU utilization (in %)", lambda values: values.gpu_percent),
    "DCGM_FI_DEV_FB_USED": ("Framebuffer memory used (in MiB)", _used_mib),
    "DCGM_FI_DEV_FB_FREE": ("Framebuffer memory free (in MiB)", _free_mib),
    "DCGM_FI_DEV_POWER_USAGE": ("Power draw (in W)", lambda values: values.gpu_power_watts),
    "DCGM_FI_DEV_GPU_TEMP": (
        "GPU temperature (in C)",
        lambda values: values.gpu_temperature_celsius,
    ),
    "DCGM_FI_DEV_XID_ERRORS": (
        "Value of the last XID error encountered",
        lambda values: values.gpu_xid,
    ),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (
        "Total number of double-bit volatile ECC errors",
        lambda values: values.gpu_ecc_errors,
    ),
}


@dataclass(frozen=True, slots=True)
class Source:
    """What the leader exports."""

    newest: Newest
    now: Callable[[], datetime]
    # DCGM's metrics; off where DCGM's exporter runs on the same nodes.
    gpus: bool
    # Metrics of so many tasks at most.
    tasks_max: int


class SignalCollector(Collector):
    """Reads the newest samples whenever Prometheus asks. Empty while this process does not lead."""

    def __init__(self) -> None:
        self.source: Source | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing: which metrics there are depends on what was measured."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of the newest samples."""
        source = self.source
        if source is None:
            return
        now = source.now()
        yield from _node_metrics(source.newest, now)
        if source.gpus:
            yield from _gpu_metrics(source.newest, now)
        if source.tasks_max:
            yield from _task_metrics(source.newest, now, source.tasks_max)


# One for the process: the services of the all-in-one share its registry.
COLLECTOR = SignalCollector()
REGISTRY.register(COLLECTOR)


def _node_metrics(newest: Newest, now: datetime) -> Iterator[Metric]:
    nodes = [(node_id, found.sample.values) for node_id, found in newest.recent(now)]
    for each in NODES:
        family = GaugeMetricFamily(f"shiftwork_node_{each.name}", each.text, labels=("node",))
        for node_id, values in nodes:
            value = _field(values, each.field)
            if value is not None:
                family.add_metric((node_id,), value / each.divisor)
        yield family


def _field(values: NodeValues, name: str) -> float | None:
    return getattr(values, name)


def _gpu_metrics(newest: Newest, now: datetime) -> Iterator[Metric]:
    found: list[tuple[tuple[str, ...], GpuSample]] = [
        ((str(gpu.index), gpu.uuid, gpu.model, node.hostname, node_id), gpu)
        for node_id, node in newest.recent(now)
        for gpu in node.sample.gpus
    ]
    for name, (text, read) in GPUS.items():
        family = GaugeMetricFamily(name, text, labels=GPU_LABELS)
        for labels, gpu in found:
            value = read(gpu.values)
            if value is not None:
                family.add_metric(labels, value)
        yield family


def _task_metrics(newest: Newest, now: datetime, tasks_max: int) -> Iterator[Metric]:
    tasks = list(newest.of_tasks(sorted(newest.nodes_of)[:tasks_max], now))
    for name, text, field, divisor in (
        ("cpu_cores", "Processors that a task uses", "cpu_cores", 1.0),
        ("memory_bytes", "Memory that a task uses", "memory_bytes", 1.0),
        ("gpu_utilization_ratio", "Mean utilization of a task's GPUs", "gpu_percent", PERCENT),
    ):
        family = GaugeMetricFamily(f"shiftwork_task_{name}", text, labels=("task",))
        for each in tasks:
            value = getattr(each, field)
            if value is not None:
                family.add_metric((each.task_id,), value / divisor)
        yield family
