"""Finds the GPUs of this machine through NVIDIA's management library (NVML).

Called by ``up``, which makes slots of them, and by ``doctor``, which reports why there are none. It
starts no GPU program and reserves nothing. A machine without a driver simply has no GPUs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

# CUDA takes an unambiguous beginning of a UUID, as people copy it from nvidia-smi.
_UUID_KINDS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU that is divided."""

    # Its place in the list, and so the number of its slot.
    index: int
    # What CUDA_VISIBLE_DEVICES takes: unlike a number it means the same in every process.
    uuid: str
    model: str
    # 0: the driver does not report it (memory shared with the processor).
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """The GPUs found; ``problem`` is the reason why there are none, or fewer than expected."""

    gpus: tuple[Gpu, ...]
    problem: str = ""
    driver: str = ""


class Memory(Protocol):
    """NVML's answer about memory."""

    total: int
    used: int


class Nvml(Protocol):
    """The part of NVML that is used here, as the package ``nvidia-ml-py`` has it."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: D102, N802 - NVML's own names, here and below
    def nvmlShutdown(self) -> None: ...  # noqa: D102, N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: D102, N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> object: ...  # noqa: D102, N802
    def nvmlDeviceGetName(self, handle: object) -> str: ...  # noqa: D102, N802
    def nvmlDeviceGetUUID(self, handle: object) -> str: ...  # noqa: D102, N802
    def nvmlDeviceGetMemoryInfo(self, handle: object) -> Memory: ...  # noqa: D102, N802
    def nvmlDeviceGetMigMode(self, handle: object) -> Sequence[int]: ...  # noqa: D102, N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: object) -> int: ...  # noqa: D102, N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: object, index: int) -> object: ...  # noqa: D102, N802


def find_gpus(nvml: Nvml | None = None, visible: str | None = None) -> Found:
    """Ask the driver. Never raises: an error becomes the ``problem``.

    ``visible`` (default: this process's own CUDA_VISIBLE_DEVICES) leaves out what the operator has
    hidden from the platform.
    """
    try:
        library = nvml or cast("Nvml", importlib.import_module("pynvml"))
    except ImportError:
        return Found((), "the package nvidia-ml-py is not installed: make setup")
    try:
        library.nvmlInit()
    except library.NVMLError as problem:
        return Found((), f"no NVIDIA driver answers ({problem})")
    try:
        found = _ask(library)
    except library.NVMLError as problem:
        return Found((), f"the NVIDIA driver does not list its GPUs ({problem})")
    finally:
        library.nvmlShutdown()
    own = os.environ.get("CUDA_VISIBLE_DEVICES")  # noqa: TID251 - the driver's variable, not a setting
    wanted = own if visible is None else visible
    return found if wanted is None else _only(found, wanted)


def _ask(nvml: Nvml) -> Found:
    devices, problems = list[Gpu](), list[str]()
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            for device in usable(nvml, handle):
                devices.append(_describe(nvml, device, len(devices)))
        except nvml.NVMLError as problem:
            # One that fell off its bus must not hide the others.
            problems.append(f"GPU {number} does not answer ({problem})")
    if not devices and not problems:
        problems.append("the NVIDIA driver has no GPU")
    return Found(tuple(devices), "; ".join(problems), nvml.nvmlSystemGetDriverVersion())


def usable(nvml: Nvml, handle: object) -> Iterator[object]:
    """The device itself, or the parts of a divided one, which CUDA cannot use as a whole."""
    try:
        divided = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    except nvml.NVMLError:
        divided = False
    if not divided:
        yield handle
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue
        yield part


def _describe(nvml: Nvml, handle: object, index: int) -> Gpu:
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        memory_bytes = 0
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        model=nvml.nvmlDeviceGetName(handle),
        memory_bytes=memory_bytes,
    )


def _only(found: Found, visible: str) -> Found:
    """Filter as CUDA does: numbers or UUIDs in this order; the list ends at a wrong one."""
    chosen = list[Gpu]()
    for entry in visible.replace(" ", "").split(","):
        match = [gpu for gpu in found.gpus if _matches(entry, gpu)]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen.append(match[0])
    gpus = tuple(
        Gpu(index=number, uuid=gpu.uuid, model=gpu.model, memory_bytes=gpu.memory_bytes)
        for number, gpu in enumerate(chosen)
    )
    hidden = len(found.gpus) - len(gpus)
    if not hidden:
        return Found(gpus, found.problem, found.driver)
    note = f"CUDA_VISIBLE_DEVICES={visible!r} hides {hidden} of {len(found.gpus)} GPUs"
    return Found(gpus, "; ".join(filter(None, (found.problem, note))), found.driver)


def _matches(entry: str, gpu: Gpu) -> bool:
    if entry.startswith(_UUID_KINDS):
        return gpu.uuid.startswith(entry)
    return entry.isdecimal() and int(entry) == gpu.index
