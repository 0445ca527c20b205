"""Measures this machine: processors, memory, disks and network. Each value fails on its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from libs.contracts.messages import NodeValues
from libs.signals.rates import Rates
from libs.signals.readings import reading

LOOPBACK = "lo"


class System(Protocol):
    """The part of psutil that is used here."""

    def cpu_times(self) -> Any: ...  # noqa: D102, ANN401 - psutil's own names, here and below
    def getloadavg(self) -> tuple[float, float, float]: ...  # noqa: D102
    def virtual_memory(self) -> Any: ...  # noqa: D102, ANN401
    def disk_io_counters(self) -> Any: ...  # noqa: D102, ANN401
    def net_io_counters(self, pernic: bool = False) -> Any: ...  # noqa: D102, ANN401


@dataclass
class MachineSampler:
    """Samples the machine. ``folder``: whose file system is measured."""

    folder: Path
    system: System = psutil  # pyright: ignore[reportAssignmentType] - a module with these functions
    disk_usage: Callable[[Path], Any] = shutil.disk_usage
    _rates: Rates = field(default_factory=Rates)

    def sample(self, now_s: float) -> NodeValues:
        """Measure. ``now_s`` is the time of a clock that only goes forward."""
        system = self.system

        def counter(name: str, read: Callable[[], float]) -> float | None:
            return self._rates.rate(name, _read(read), now_s)

        return NodeValues(
            cpu_percent=self._cpu_percent(now_s),
            load_processes=_read(lambda: system.getloadavg()[0]),
            memory_used_bytes=_read(lambda: _used(system.virtual_memory())),
            memory_total_bytes=_read(lambda: system.virtual_memory().total),
            disk_used_bytes=_read(lambda: self.disk_usage(self.folder).used),
            disk_total_bytes=_read(lambda: self.disk_usage(self.folder).total),
            disk_read_bytes_per_second=counter(
                "read", lambda: system.disk_io_counters().read_bytes
            ),
            disk_write_bytes_per_second=counter(
                "write", lambda: system.disk_io_counters().write_bytes
            ),
            network_receive_bytes_per_second=counter(
                "receive", lambda: _network(system, "bytes_recv")
            ),
            network_transmit_bytes_per_second=counter(
                "transmit", lambda: _network(system, "bytes_sent")
            ),
        )

    def _cpu_percent(self, now_s: float) -> float | None:
        """Guests are counted in the time of users already."""
        times = _read(lambda: _cpu_total(self.system.cpu_times()))
        idle = _read(lambda: _cpu_idle(self.system.cpu_times()))
        every = self._rates.rate("cpu", times, now_s)
        unused = self._rates.rate("idle", idle, now_s)
        if not every or unused is None:
            return None
        return min(100.0, max(0.0, 100.0 * (1.0 - unused / every)))


def _read(read: Callable[[], float]) -> float | None:
    return reading(read, psutil.Error, RuntimeError)


def _used(memory: Any) -> float:  # noqa: ANN401 - psutil's
    """What cannot be given to a new program without swapping."""
    return memory.total - memory.available


def _cpu_total(times: Any) -> float:  # noqa: ANN401 - psutil's
    return sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)


def _cpu_idle(times: Any) -> float:  # noqa: ANN401 - psutil's
    return times.idle + getattr(times, "iowait", 0.0)


def _network(system: System, name: str) -> float:
    devices = system.net_io_counters(pernic=True)
    return sum(getattr(found, name) for each, found in devices.items() if each != LOOPBACK)
