"""A driver to measure with: NVML's functions over a list of devices."""

# ruff: noqa: N802 - the names of NVML's functions

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    """What the library raises for everything."""


@dataclass
class Card:
    """One GPU. ``refuses``: the functions that it does not support."""

    uuid: str
    percent: int = 50
    used: int = 3 * 2**30
    total: int = 80 * 2**30
    milliwatts: int = 412_500
    celsius: int = 61
    ecc: int = 0
    lost: bool = False
    processes: dict[int, int | None] = field(default_factory=dict[int, int | None])
    xids: list[int] = field(default_factory=list[int])
    refuses: set[str] = field(default_factory=set[str])


@dataclass(frozen=True)
class Handle:
    """A GPU, as one start of the driver names it."""

    card: Card
    start: int


class MeasuringDriver:
    """What ``GpuSampler`` calls."""

    NVMLError = NvmlError

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        # A handle is of one start of the driver.
        self.starts = 1
        self._running = True
        self.opened = 0
        self.event_sets = 0

    @property
    def running(self) -> bool:
        return self._running

    @running.setter
    def running(self, value: bool) -> None:
        self.starts += value and not self._running
        self._running = value

    def _card(self, handle: Handle, name: str) -> Card:
        if not self.running or handle.card.lost or handle.start != self.starts:
            raise NvmlError("GPU is lost")
        if name in handle.card.refuses:
            raise NvmlError("Not Supported")
        return handle.card

    def nvmlInit(self) -> None:
        if not self.running:
            raise NvmlError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "575.57"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        handle = Handle(self.cards[index], self.starts)
        self._card(handle, "handle")
        return handle

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        return self._card(handle, "name") and "NVIDIA H100"

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        return self._card(handle, "uuid").uuid

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        self._card(handle, "mig")
        return [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        del handle
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: object, index: int) -> object:
        raise NvmlError(f"{device} has no part {index}")

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> Any:
        card = self._card(handle, "memory")
        return SimpleNamespace(total=card.total, used=card.used)

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> Any:
        return SimpleNamespace(gpu=self._card(handle, "percent").percent)

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        return self._card(handle, "power").milliwatts

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        assert sensor == 0
        return self._card(handle, "temperature").celsius

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return self._card(handle, "ecc").ecc

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        found = self._card(handle, "processes").processes
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found.items()]

    def nvmlEventSetCreate(self) -> list[Card]:
        self.event_sets += 1
        return []

    def nvmlEventSetFree(self, events: list[Card]) -> None:
        del events
        self.event_sets -= 1

    def nvmlDeviceRegisterEvents(self, handle: Handle, kinds: int, events: list[Card]) -> None:
        assert kinds == 8
        events.append(self._card(handle, "events"))

    def nvmlEventSetWait(self, events: list[Card], timeout_ms: int) -> Any:
        assert timeout_ms == 0, "a sample waits for no error"
        if not events[0].xids:
            raise NvmlError("Timeout")
        return SimpleNamespace(eventType=8, eventData=events[0].xids.pop(0))
