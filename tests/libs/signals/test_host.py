"""The host's network devices, and what of the host a container sees anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.signals.host import HostSystem, devices
from libs.signals.machine import MachineSampler

HEAD = "Inter-|   Receive    |  Transmit\n face |bytes packets\n"


def line(name: str, received: int, sent: int) -> str:
    return f"{name:>6}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def test_a_byte_that_passes_several_devices_counts_once() -> None:
    text = HEAD + "".join(
        line(name, 100, 10)
        for name in ("lo", "eth0", "eth0.7", "ib0", "veth12ab", "cni0", "bond0", "docker0")
    )
    assert set(devices(text)) == {"lo", "eth0", "ib0"}
    assert devices(text)["eth0"] == (100.0, 10.0)


def test_the_network_of_the_host_and_the_rest_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "net-dev"
    path.write_text(HEAD + line("lo", 999, 999) + line("eth0", 1000, 50))
    sampler = MachineSampler(tmp_path, HostSystem(path))
    sampler.sample(0.0)
    path.write_text(HEAD + line("lo", 9999, 9999) + line("eth0", 3000, 150))
    found = sampler.sample(10.0)
    assert found.network_receive_bytes_per_second == pytest.approx(200)
    assert found.network_transmit_bytes_per_second == pytest.approx(10)
    assert found.memory_total_bytes
    assert found.load_processes is not None


@pytest.mark.parametrize("text", ["", HEAD + "eth0: many\n", HEAD + "eth0: 1 2 3\n"])
def test_without_readable_devices_the_rest_is_measured(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net-dev"
    if text:
        path.write_text(text)
    sampler = MachineSampler(tmp_path, HostSystem(path))
    sampler.sample(0.0)
    found = sampler.sample(10.0)
    assert found.network_receive_bytes_per_second is None
    assert found.memory_used_bytes
