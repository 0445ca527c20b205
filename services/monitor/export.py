"""The newest samples as Prometheus metrics, on the monitor's ``/metrics``.

GPUs have the names, units and labels of NVIDIA's DCGM exporter, so that its dashboards read them.
The labels are bounded by the cluster: nodes, and GPUs by node. Metrics by task are bounded by a
setting, and off by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from libs.contracts.messages import GpuSample, GpuValues
from libs.service.metrics import GaugeFamily, Metrics
from services.monitor.domain.newest import Newest

MIB = 2**20
PERCENT = 100.0
GPU_LABELS = ("gpu", "UUID", "modelName", "Hostname", "node")


declare = Metrics("monitor")


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric, by its field of ``NodeValues`` or ``TaskUtilization``."""

    family: GaugeFamily
    field: str
    divisor: float = 1.0


def _of_node(name: str, text: str, field: str, divisor: float = 1.0) -> Exported:
    return Exported(declare.family(f"shiftwork_node_{name}", text, ("node",)), field, divisor)


NODES = (
    _of_node("cpu_utilization_ratio", "Busy part of all processors", "cpu_percent", PERCENT),
    _of_node("load1", "Running and waiting processes over a minute", "load_processes"),
    _of_node("memory_used_bytes", "Memory in use", "memory_used_bytes"),
    _of_node("memory_size_bytes", "Memory of the node", "memory_total_bytes"),
    _of_node("disk_used_bytes", "Space in use where the data folder is", "disk_used_bytes"),
    _of_node("disk_size_bytes", "Space where the data folder is", "disk_total_bytes"),
    _of_node("disk_read_bytes_per_second", "Read from disks", "disk_read_bytes_per_second"),
    _of_node("disk_written_bytes_per_second", "Written to disks", "disk_write_bytes_per_second"),
    _of_node(
        "network_receive_bytes_per_second",
        "Received by network devices",
        "network_receive_bytes_per_second",
    ),
    _of_node(
        "network_transmit_bytes_per_second",
        "Sent by network devices",
        "network_transmit_bytes_per_second",
    ),
)


def _of_task(name: str, text: str, field: str, divisor: float = 1.0) -> Exported:
    family = declare.family(
        f"shiftwork_task_{name}", text, ("task",), setting="SHIFTWORK_MONITOR_TASK_METRICS_MAX"
    )
    return Exported(family, field, divisor)


TASKS = (
    _of_task("cpu_cores", "Processors that a task uses", "cpu_cores"),
    _of_task("memory_bytes", "Memory that a task uses", "memory_bytes"),
    _of_task("gpu_utilization_ratio", "Mean utilization of a task's GPUs", "gpu_percent", PERCENT),
)


def _free_mib(values: GpuValues) -> float | None:
    used, total = values.gpu_memory_used_bytes, values.gpu_memory_total_bytes
    return None if used is None or total is None else (total - used) / MIB


def _used_mib(values: GpuValues) -> float | None:
    used = values.gpu_memory_used_bytes
    return None if used is None else used / MIB


def _of_gpu(
    name: str, text: str, read: Callable[[GpuValues], float | None]
) -> tuple[GaugeFamily, Callable[[GpuValues], float | None]]:
    setting = "SHIFTWORK_MONITOR_DCGM_METRICS"
    return declare.foreign(f"DCGM_FI_DEV_{name}", text, GPU_LABELS, setting=setting), read


# DCGM's names, units and texts.
GPUS = (
    _of_gpu("GPU_UTIL", "GPU utilization (in %)", lambda values: values.gpu_percent),
    _of_gpu("FB_USED", "Framebuffer memory used (in MiB)", _used_mib),
    _of_gpu("FB_FREE", "Framebuffer memory free (in MiB)", _free_mib),
    _of_gpu("POWER_USAGE", "Power draw (in W)", lambda values: values.gpu_power_watts),
    _of_gpu("GPU_TEMP", "GPU temperature (in C)", lambda values: values.gpu_temperature_celsius),
    _of_gpu("XID_ERRORS", "Value of the last XID error encountered", lambda values: values.gpu_xid),
    _of_gpu(
        "ECC_DBE_VOL_TOTAL",
        "Total number of double-bit volatile ECC errors",
        lambda values: values.gpu_ecc_errors,
    ),
)


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
        yield _filled(each, nodes)


def _filled(what: Exported, found: Iterable[tuple[str, object]]) -> Metric:
    family = what.family.empty()
    for name, values in found:
        value: float | None = getattr(values, what.field)
        if value is not None:
            family.add_metric((name,), value / what.divisor)
    return family


def _gpu_metrics(newest: Newest, now: datetime) -> Iterator[Metric]:
    found: list[tuple[tuple[str, ...], GpuSample]] = [
        ((str(gpu.index), gpu.uuid, gpu.model, node.hostname, node_id), gpu)
        for node_id, node in newest.recent(now)
        for gpu in node.sample.gpus
    ]
    for declared, read in GPUS:
        family = declared.empty()
        for labels, gpu in found:
            value = read(gpu.values)
            if value is not None:
                family.add_metric(labels, value)
        yield family


def _task_metrics(newest: Newest, now: datetime, tasks_max: int) -> Iterator[Metric]:
    found = list(newest.of_tasks(sorted(newest.nodes_of)[:tasks_max], now))
    for each in TASKS:
        yield _filled(each, [(task.task_id, task) for task in found])
