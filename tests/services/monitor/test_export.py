"""What Prometheus reads of the newest samples."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from libs.contracts.messages import GpuSample, GpuValues, NodeSampled, NodeValues
from services.monitor import export
from services.monitor.domain.newest import Newest
from services.monitor.export import COLLECTOR, SignalCollector, Source
from tests.kit.clock import FakeClock, at
from tests.kit.service import ServiceHarness
from tests.services.monitor.series.samples import NODE, TASK, a_rank, a_sample
from tests.services.monitor.series.test_recording import hearing, send

DCGM = {"gpu": "0", "UUID": "GPU-a", "modelName": "H100", "Hostname": "host", "node": NODE}


class Registry:
    """A registry with our collector alone."""

    def __init__(self, collector: SignalCollector) -> None:
        self.collect = collector.collect


def exported(newest: Newest, clock: FakeClock, tasks_max: int = 0, *, gpus: bool = True) -> object:
    collector = SignalCollector()
    collector.source = Source(newest, clock.now, gpus=gpus, tasks_max=tasks_max)
    text = generate_latest(Registry(collector)).decode()  # pyright: ignore[reportArgumentType]
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def newest_of(*samples: NodeSampled) -> Newest:
    newest = Newest(60.0)
    for sample in samples:
        newest.take(sample)
    return newest


def a_gpu(**values: float) -> NodeSampled:
    gpu = GpuSample(index=0, uuid="GPU-a", model="H100", values=GpuValues(**values))
    return NodeSampled(
        node_id=NODE,
        sampled_at=at(0),
        hostname="host",
        values=NodeValues(cpu_percent=25.0, memory_used_bytes=7.0),
        gpus=(gpu,),
    )


def test_gpus_have_the_names_units_and_labels_of_dcgm() -> None:
    found = exported(
        newest_of(
            a_gpu(
                gpu_percent=97.0,
                gpu_memory_used_bytes=3 * 2**30,
                gpu_memory_total_bytes=4 * 2**30,
                gpu_power_watts=412.5,
                gpu_temperature_celsius=61.0,
                gpu_ecc_errors=2.0,
                gpu_xid=79.0,
            )
        ),
        FakeClock(),
    )
    labels = tuple(sorted(DCGM.items()))
    assert {name: value for (name, *of), value in found.items() if tuple(of) == labels} == {
        "DCGM_FI_DEV_GPU_UTIL": 97.0,
        "DCGM_FI_DEV_FB_USED": 3072.0,
        "DCGM_FI_DEV_FB_FREE": 1024.0,
        "DCGM_FI_DEV_POWER_USAGE": 412.5,
        "DCGM_FI_DEV_GPU_TEMP": 61.0,
        "DCGM_FI_DEV_XID_ERRORS": 79.0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 2.0,
    }
    node = ("node", NODE)
    assert found["shiftwork_node_cpu_utilization_ratio", node] == 0.25
    assert found["shiftwork_node_memory_used_bytes", node] == 7.0


def test_what_was_not_measured_is_absent() -> None:
    found = exported(newest_of(a_gpu(gpu_percent=1.0)), FakeClock())
    assert sorted(name for name, *_ in found) == [
        "DCGM_FI_DEV_GPU_UTIL",
        "shiftwork_node_cpu_utilization_ratio",
        "shiftwork_node_memory_used_bytes",
    ]


def test_gpus_can_be_left_to_dcgm() -> None:
    found = exported(newest_of(a_gpu(gpu_percent=1.0)), FakeClock(), gpus=False)
    assert not [name for name, *_ in found if name.startswith("DCGM")]


def test_tasks_are_exported_up_to_a_number_and_by_default_not_at_all() -> None:
    ranks = [a_rank(0).model_copy(update={"task_id": f"t{n}"}) for n in range(5)]
    newest = newest_of(a_sample(0, ranks=ranks))
    assert not [each for each in exported(newest, FakeClock()) if "task" in each[0]]
    found = exported(newest, FakeClock(), 3)
    tasks = [labels for name, labels in found if name == "shiftwork_task_cpu_cores"]
    assert tasks == [("task", "t0"), ("task", "t1"), ("task", "t2")]


def test_a_node_that_is_silent_is_not_exported() -> None:
    newest, clock = newest_of(a_gpu(gpu_percent=1.0)), FakeClock()
    clock.move_to(61)
    assert exported(newest, clock) == {}


@pytest.fixture
async def monitor(service: ServiceHarness) -> AsyncIterator[ServiceHarness]:
    service.clock.move_to(0)
    await service.lead()
    async with hearing(service):
        yield service


async def test_the_leader_alone_exports(monitor: ServiceHarness) -> None:
    await send(monitor, a_sample(0, ranks=[a_rank(0)]))
    names = {family.name for family in COLLECTOR.collect() if family.samples}
    assert "shiftwork_node_cpu_utilization_ratio" in names
    monitor.service.on_lead_end()
    assert list(COLLECTOR.collect()) == []
    assert TASK not in str(export.COLLECTOR.source)
