"""Measures GPUs through NVIDIA's management library (NVML). Each value fails on its own: a GPU that
fell off its bus is absent, and the others go on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from libs.contracts.messages import GpuSample, GpuValues
from libs.signals.gpus import Nvml, usable
from libs.signals.readings import reading

T = TypeVar("T")

# NVML's constants.
TEMPERATURE_GPU = 0
UNCORRECTED, VOLATILE = 1, 0
EVENT_XID = 8
# So many reports of errors are taken at one sample.
XIDS_MAX = 100


class MeasuringNvml(Nvml, Protocol):
    """The part of NVML that measures, as the package ``nvidia-ml-py`` has it."""

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any: ...  # noqa: D102, N802, ANN401 - NVML's own names, here and below
    def nvmlDeviceGetPowerUsage(self, handle: object) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetTotalEccErrors(self, handle: object, kind: int, counter: int) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> Sequence[Any]: ...  # noqa: D102, N802
    def nvmlEventSetCreate(self) -> object: ...  # noqa: D102, N802
    def nvmlEventSetFree(self, events: object) -> None: ...  # noqa: D102, N802
    def nvmlDeviceRegisterEvents(self, handle: object, kinds: int, events: object) -> None: ...  # noqa: D102, N802
    def nvmlEventSetWait(self, events: object, timeout_ms: int) -> Any: ...  # noqa: D102, N802, ANN401


@dataclass
class _Device:
    """A GPU that was found, and the errors that it reports."""

    handle: object
    model: str
    # None: the driver reports none of it.
    events: object | None = None
    xid: float | None = None


@dataclass
class GpuSampler:
    """Samples GPUs. ``uuids``: the GPUs by their index on the node."""

    uuids: Sequence[str]
    library: MeasuringNvml | None = None
    # Bytes on these GPUs by process; None: the driver does not report it, or has not been asked.
    memory_by_process: dict[int, float] | None = None
    _devices: dict[str, _Device] = field(default_factory=dict[str, _Device])
    _opened: bool = False

    def sample(self) -> tuple[GpuSample, ...]:
        """Measure. A GPU that does not answer is absent, and looked for at the next sample."""
        self.memory_by_process = None
        if not self.uuids:
            return ()
        nvml = self._open()
        if nvml is None:
            return ()
        if any(uuid not in self._devices for uuid in self.uuids):
            self._find(nvml)
        found: list[GpuSample] = []
        for index, uuid in enumerate(self.uuids):
            device = self._devices.get(uuid)
            if device is None:
                continue
            values = self._measure(nvml, device)
            self._count_processes(nvml, device)
            if values == GpuValues():
                # Nothing at all was answered: its handle is of no use any more.
                self._forget(nvml, uuid)
                continue
            found.append(GpuSample(index=index, uuid=uuid, model=device.model, values=values))
        return tuple(found)

    def close(self) -> None:
        """Let the driver go."""
        nvml = self.library
        if nvml is not None and self._opened:
            for uuid in tuple(self._devices):
                self._forget(nvml, uuid)
            _try(nvml, nvml.nvmlShutdown)
            self._opened = False

    def _open(self) -> MeasuringNvml | None:
        """Connect to the driver; again at each sample while it has none of the GPUs."""
        if self._opened and self._devices:
            return self.library
        try:
            nvml = self.library or cast("MeasuringNvml", importlib.import_module("pynvml"))
        except ImportError:
            return None
        self.library = nvml
        if self._opened:
            _try(nvml, nvml.nvmlShutdown)
            self._opened = False
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        self._opened = True
        return nvml

    def _find(self, nvml: MeasuringNvml) -> None:
        """Match the GPUs by their UUIDs: a driver that is restarted may number them otherwise."""
        count = _try(nvml, nvml.nvmlDeviceGetCount) or 0
        for number in range(count):
            handle = _try(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, number))
            if handle is None:
                continue
            for part in _try(nvml, partial(_parts, nvml, handle)) or ():
                uuid = _try(nvml, partial(nvml.nvmlDeviceGetUUID, part))
                if uuid is not None and uuid in self.uuids and uuid not in self._devices:
                    model = _try(nvml, partial(nvml.nvmlDeviceGetName, part)) or ""
                    self._devices[uuid] = _Device(part, model, _xid_events(nvml, part))

    def _measure(self, nvml: MeasuringNvml, device: _Device) -> GpuValues:
        handle = device.handle

        def read(take: Callable[[], float]) -> float | None:
            return reading(take, nvml.NVMLError)

        device.xid = _newest_xid(nvml, device.events, device.xid)
        return GpuValues(
            gpu_percent=read(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            gpu_memory_used_bytes=read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            gpu_memory_total_bytes=read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            gpu_power_watts=read(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            gpu_temperature_celsius=read(
                lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU)
            ),
            gpu_ecc_errors=read(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE)
            ),
            gpu_xid=device.xid,
        )

    def _count_processes(self, nvml: MeasuringNvml, device: _Device) -> None:
        """Add a GPU's processes. A process whose memory the driver hides is left out."""
        processes = _try(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device.handle))
        if processes is None:
            return
        self.memory_by_process = self.memory_by_process or {}
        for process in processes:
            used = reading(partial(getattr, process, "usedGpuMemory"))
            if used is not None:
                pid = int(process.pid)
                self.memory_by_process[pid] = self.memory_by_process.get(pid, 0.0) + used

    def _forget(self, nvml: MeasuringNvml, uuid: str) -> None:
        events = self._devices.pop(uuid).events
        if events is not None:
            _try(nvml, lambda: nvml.nvmlEventSetFree(events))


def _try(nvml: MeasuringNvml, call: Callable[[], T]) -> T | None:
    """The answer; None if the driver refuses, or does not know the function."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError):
        return None


def _parts(nvml: MeasuringNvml, handle: object) -> list[object]:
    return list(usable(nvml, handle))


def _xid_events(nvml: MeasuringNvml, handle: object) -> object | None:
    """Where the driver reports the GPU's errors from now on."""
    events = _try(nvml, nvml.nvmlEventSetCreate)
    if events is None:
        return None
    try:
        nvml.nvmlDeviceRegisterEvents(handle, EVENT_XID, events)
    except (nvml.NVMLError, AttributeError):
        _try(nvml, lambda: nvml.nvmlEventSetFree(events))
        return None
    return events


def _newest_xid(nvml: MeasuringNvml, events: object | None, before: float | None) -> float | None:
    """The number of the last error; that of the sample before if there is no new one."""
    for _ in range(XIDS_MAX if events is not None else 0):
        found = _try(nvml, lambda: nvml.nvmlEventSetWait(events, 0))
        if found is None:
            break
        before = float(found.eventData)
    return before
