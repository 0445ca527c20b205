"""What is measured of GPUs, and what a broken driver or GPU leaves of it."""

from __future__ import annotations

import pytest

from libs.contracts.messages import GpuValues
from libs.signals.gpu_sampler import GpuSampler
from tests.libs.signals.fake_nvml import Card, MeasuringDriver

WHOLE = GpuValues(
    gpu_percent=50,
    gpu_memory_used_bytes=3 * 2**30,
    gpu_memory_total_bytes=80 * 2**30,
    gpu_power_watts=412.5,
    gpu_temperature_celsius=61,
    gpu_ecc_errors=0,
)


def test_every_gpu_is_measured_under_its_index_on_the_node() -> None:
    # The driver numbers them otherwise than the node does.
    driver = MeasuringDriver(Card("GPU-b", percent=7), Card("GPU-a"), Card("GPU-other"))
    first, second = GpuSampler(("GPU-a", "GPU-b"), driver).sample()
    assert (first.index, first.uuid, first.model, first.values) == (
        0,
        "GPU-a",
        "NVIDIA H100",
        WHOLE,
    )
    assert (second.index, second.uuid, second.values.gpu_percent) == (1, "GPU-b", 7)


@pytest.mark.parametrize(
    ("refused", "absent"),
    [
        ("percent", ["gpu_percent"]),
        ("memory", ["gpu_memory_used_bytes", "gpu_memory_total_bytes"]),
        ("power", ["gpu_power_watts"]),
        ("temperature", ["gpu_temperature_celsius"]),
        ("ecc", ["gpu_ecc_errors"]),
        ("events", []),
        ("processes", []),
    ],
)
def test_what_a_gpu_does_not_support_is_absent_alone(refused: str, absent: list[str]) -> None:
    (found,) = GpuSampler(("GPU-a",), MeasuringDriver(Card("GPU-a", refuses={refused}))).sample()
    assert found.values == WHOLE.model_copy(update=dict.fromkeys(absent))


def test_a_gpu_that_is_lost_and_comes_back_is_a_gap_and_harms_no_other() -> None:
    card = Card("GPU-a")
    driver = MeasuringDriver(card, Card("GPU-b"))
    sampler = GpuSampler(("GPU-a", "GPU-b"), driver)
    assert [each.index for each in sampler.sample()] == [0, 1]
    card.lost = True
    assert [each.index for each in sampler.sample()] == [1]
    card.lost = False
    assert [each.index for each in sampler.sample()] == [0, 1]
    sampler.close()
    assert (driver.opened, driver.event_sets) == (0, 0)


def test_a_driver_that_is_restarted_is_asked_again() -> None:
    driver = MeasuringDriver(Card("GPU-a"))
    sampler = GpuSampler(("GPU-a",), driver)
    driver.running = False
    assert sampler.sample() == ()
    driver.running = True
    assert len(sampler.sample()) == 1
    driver.running = False
    assert sampler.sample() == ()
    assert sampler.sample() == ()
    driver.running = True
    assert len(sampler.sample()) == 1
    assert driver.opened == 1


def test_the_last_error_of_a_gpu_stays_visible() -> None:
    card = Card("GPU-a")
    sampler = GpuSampler(("GPU-a",), MeasuringDriver(card))
    assert sampler.sample()[0].values.gpu_xid is None
    card.xids += [31, 79]
    assert sampler.sample()[0].values.gpu_xid == 79
    assert sampler.sample()[0].values.gpu_xid == 79


def test_memory_of_processes_is_summed_over_gpus() -> None:
    driver = MeasuringDriver(
        Card("GPU-a", processes={11: 100, 12: None}), Card("GPU-b", processes={11: 50, 13: 7})
    )
    sampler = GpuSampler(("GPU-a", "GPU-b"), driver)
    sampler.sample()
    assert sampler.memory_by_process == {11: 150, 13: 7}


def test_a_driver_that_hides_processes_reports_none_of_them() -> None:
    sampler = GpuSampler(("GPU-a",), MeasuringDriver(Card("GPU-a", refuses={"processes"})))
    sampler.sample()
    assert sampler.memory_by_process is None


def test_a_node_without_gpus_asks_no_driver() -> None:
    driver = MeasuringDriver()
    assert GpuSampler((), driver).sample() == ()
    assert driver.opened == 0
