"""What is measured of a machine: this one, and one of which a part cannot be read."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libs.contracts.messages import NodeValues
from libs.signals.machine import MachineSampler

Times = namedtuple("Times", "user system idle iowait guest")  # noqa: PYI024 - as psutil has it


class Machine:
    """A machine whose counters are set by the test. ``broken``: what cannot be read."""

    def __init__(self) -> None:
        self.times = Times(100.0, 20.0, 800.0, 80.0, 10.0)
        self.disks: Any = SimpleNamespace(read_bytes=1000, write_bytes=2000)
        self.network = {"lo": (7, 7), "eth0": (100, 50), "eth1": (10, 5)}
        self.broken: set[str] = set()

    def _of(self, name: str) -> None:
        if name in self.broken:
            raise OSError(f"{name} cannot be read")

    def cpu_times(self) -> Any:
        self._of("cpu")
        return self.times

    def getloadavg(self) -> tuple[float, float, float]:
        self._of("load")
        return (1.5, 2.5, 3.5)

    def virtual_memory(self) -> Any:
        self._of("memory")
        return SimpleNamespace(total=1000, available=400)

    def disk_io_counters(self) -> Any:
        self._of("disks")
        return self.disks

    def net_io_counters(self, pernic: bool = False) -> Any:
        self._of("network")
        assert pernic
        return {
            name: SimpleNamespace(bytes_recv=received, bytes_sent=sent)
            for name, (received, sent) in self.network.items()
        }

    def disk_usage(self, folder: Path) -> Any:
        self._of("folder")
        assert folder == Path("/data")
        return SimpleNamespace(used=30, total=90)


def sampler(machine: Machine) -> MachineSampler:
    return MachineSampler(Path("/data"), machine, machine.disk_usage)


def after_ten_seconds(machine: Machine) -> None:
    # Guests are part of the users' time: 5 s of 20 s were busy.
    machine.times = Times(104.0, 21.0, 811.0, 84.0, 13.0)
    machine.disks = SimpleNamespace(read_bytes=2000, write_bytes=2500)
    machine.network = {"lo": (9999, 9999), "eth0": (200, 150), "eth1": (30, 5)}


WHOLE = NodeValues(
    cpu_percent=25.0,
    load_processes=1.5,
    memory_used_bytes=600,
    memory_total_bytes=1000,
    disk_used_bytes=30,
    disk_total_bytes=90,
    disk_read_bytes_per_second=100.0,
    disk_write_bytes_per_second=50.0,
    network_receive_bytes_per_second=12.0,
    network_transmit_bytes_per_second=10.0,
)
RATES = {
    "cpu_percent",
    "disk_read_bytes_per_second",
    "disk_write_bytes_per_second",
    "network_receive_bytes_per_second",
    "network_transmit_bytes_per_second",
}


def test_rates_are_of_the_time_between_two_samples() -> None:
    machine = Machine()
    sampled = sampler(machine)
    first = sampled.sample(100.0)
    assert first == WHOLE.model_copy(update=dict.fromkeys(RATES))
    after_ten_seconds(machine)
    assert sampled.sample(110.0) == WHOLE


@pytest.mark.parametrize(
    ("broken", "absent"),
    [
        ("cpu", ["cpu_percent"]),
        ("load", ["load_processes"]),
        ("memory", ["memory_used_bytes", "memory_total_bytes"]),
        ("disks", ["disk_read_bytes_per_second", "disk_write_bytes_per_second"]),
        ("network", ["network_receive_bytes_per_second", "network_transmit_bytes_per_second"]),
        ("folder", ["disk_used_bytes", "disk_total_bytes"]),
    ],
)
def test_what_cannot_be_read_is_absent_alone(broken: str, absent: list[str]) -> None:
    machine = Machine()
    machine.broken = {broken}
    sampled = sampler(machine)
    sampled.sample(100.0)
    after_ten_seconds(machine)
    found = sampled.sample(110.0)
    missing = {name for name, value in found if value is None}
    assert missing == set(absent)


def test_a_counter_that_began_again_is_a_gap_and_no_negative_rate() -> None:
    machine = Machine()
    sampled = sampler(machine)
    sampled.sample(100.0)
    machine.disks = SimpleNamespace(read_bytes=10, write_bytes=2500)
    found = sampled.sample(110.0)
    assert found.disk_read_bytes_per_second is None
    assert found.disk_write_bytes_per_second == 50.0


def test_a_machine_without_disks_of_its_own_has_no_rates_of_them() -> None:
    machine = Machine()
    machine.disks = None
    sampled = sampler(machine)
    sampled.sample(100.0)
    assert sampled.sample(110.0).disk_read_bytes_per_second is None


def test_this_machine(tmp_path: Path) -> None:
    sampled = MachineSampler(tmp_path)
    sampled.sample(0.0)
    found = sampled.sample(1e-3)
    assert 0 < (found.memory_used_bytes or 0) < (found.memory_total_bytes or 0)
    assert 0 < (found.disk_used_bytes or 0) < (found.disk_total_bytes or 0)
    assert found.load_processes is not None
    assert found.network_receive_bytes_per_second is not None
