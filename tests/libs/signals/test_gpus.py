"""GPU discovery against NVML's own interface; the real library where there is one."""

# ruff: noqa: N802 - the names of NVML's functions

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from libs.signals.gpus import Gpu, find_gpus


class NvmlError(Exception):
    """What the library raises for everything."""


@dataclass
class Device:
    uuid: str
    total: int = 80 * 2**30
    lost: bool = False
    shared_memory: bool = False
    # MIG instances by their place; None: a place without one. Empty: not divided.
    parts: list[Device | None] = field(default_factory=list)


@dataclass
class Memory:
    total: int


class Driver:
    """NVML's functions over a list of devices."""

    NVMLError = NvmlError

    def __init__(self, *devices: Device, broken: str = "") -> None:
        self.devices = devices
        self.broken = broken
        self.open = 0

    def nvmlInit(self) -> None:
        if self.broken == "init":
            raise NvmlError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "575.57"

    def nvmlDeviceGetCount(self) -> int:
        if self.broken == "count":
            raise NvmlError("Unknown Error")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        if self.devices[index].lost:
            raise NvmlError("GPU is lost")
        return self.devices[index]

    def nvmlDeviceGetName(self, handle: Device) -> str:
        return "NVIDIA H100" if handle.uuid.startswith("GPU") else "NVIDIA H100 MIG 3g.40gb"

    def nvmlDeviceGetUUID(self, handle: Device) -> str:
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Device) -> Memory:
        if handle.shared_memory:
            raise NvmlError("Not Supported")
        return Memory(handle.total)

    def nvmlDeviceGetMigMode(self, handle: Device) -> list[int]:
        if handle.shared_memory:
            raise NvmlError("Not Supported")
        return [1 if handle.parts else 0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Device) -> int:
        return len(handle.parts)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Device, index: int) -> Device:
        part = handle.parts[index]
        if part is None:
            raise NvmlError("Not Found")
        return part


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_every_gpu_with_its_facts() -> None:
    driver = Driver(Device("GPU-a"), Device("GPU-b", total=40 * 2**30))
    found = find_gpus(driver)
    assert found.gpus == (
        Gpu(0, "GPU-a", "NVIDIA H100", 80 * 2**30),
        Gpu(1, "GPU-b", "NVIDIA H100", 40 * 2**30),
    )
    assert (found.problem, found.driver, driver.open) == ("", "575.57", 0)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver(broken="init"), "no NVIDIA driver answers (Driver Not Loaded)"),
        (Driver(broken="count"), "does not list its GPUs (Unknown Error)"),
        (Driver(), "the NVIDIA driver has no GPU"),
    ],
)
def test_no_gpu_has_a_reason(driver: Driver, reason: str) -> None:
    found = find_gpus(driver)
    assert found.gpus == ()
    assert reason in found.problem
    assert driver.open == 0


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    found = find_gpus(Driver(Device("GPU-a"), Device("GPU-b", lost=True), Device("GPU-c")))
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [(0, "GPU-a"), (1, "GPU-c")]
    assert found.problem == "GPU 1 does not answer (GPU is lost)"


def test_a_divided_gpu_is_its_parts() -> None:
    parts = [Device("MIG-1", total=2**30), None, Device("MIG-2", total=2**30)]
    found = find_gpus(Driver(Device("GPU-a", parts=parts), Device("GPU-b")))
    assert [(gpu.index, gpu.uuid) for gpu in found.gpus] == [
        (0, "MIG-1"),
        (1, "MIG-2"),
        (2, "GPU-b"),
    ]


def test_unknown_gpu_memory_is_0() -> None:
    (gpu,) = find_gpus(Driver(Device("GPU-a", shared_memory=True))).gpus
    assert gpu.memory_bytes == 0


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("2,0", ["GPU-cc", "GPU-aa"]),
        (" 1 ", ["GPU-bb"]),
        ("GPU-b,GPU-a", ["GPU-bb", "GPU-aa"]),
        # As in CUDA, the first entry without meaning ends the list.
        ("0,7,1", ["GPU-aa"]),
        ("0,0", ["GPU-aa"]),
        ("GPU-", []),
        ("-1", []),
        ("", []),
    ],
)
def test_hidden_gpus_are_not_used(visible: str, uuids: list[str]) -> None:
    driver = Driver(Device("GPU-aa"), Device("GPU-bb"), Device("GPU-cc"))
    found = find_gpus(driver, visible)
    assert [gpu.uuid for gpu in found.gpus] == uuids
    assert [gpu.index for gpu in found.gpus] == list(range(len(uuids)))
    assert f"hides {3 - len(uuids)} of 3 GPUs" in found.problem


def test_cuda_visible_devices_hides_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.uuid for gpu in find_gpus(Driver(Device("GPU-a"), Device("GPU-b"))).gpus] == [
        "GPU-b"
    ]


def test_the_real_library_is_asked() -> None:
    """The library returns the GPUs of this machine, or the reason why there are none."""
    found = find_gpus()
    assert found.gpus or found.problem
    assert all(gpu.uuid and gpu.model for gpu in found.gpus)
