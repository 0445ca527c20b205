"""Reads what control groups of version 2 or 1 have used so far. Each value fails on its own.

``read_groups`` is for the launcher, which knows the groups of its ranks. ``PodGroups`` finds the
groups of pods on a node of Kubernetes by their UIDs; the node agent uses it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from libs.signals.readings import reading

MICROSECONDS, NANOSECONDS = 1e-6, 1e-9
# The controllers of version 1 that are read. Each has a tree of its own.
CONTROLLERS = frozenset({"cpuacct", "memory", "blkio"})
# The kubelet's own folder may lie below others: it has a setting, and a node may be a container.
ROOT_DEPTH_MAX = 3
FOLDERS_MAX = 20_000
ROOT_SECONDS = 60.0
# Control groups of one pod that are counted, and the bytes of one of their files that are read.
GROUPS_OF_POD_MAX = 1000
FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process or a control group has used so far. An absent value could not be read."""

    cpu_seconds: float | None
    memory_bytes: float | None
    read_bytes: float | None
    write_bytes: float | None


def first(*values: float | None) -> float | None:
    """The first value that could be read."""
    return next((value for value in values if value is not None), None)


def read_groups(folders: Iterable[str]) -> Usage:
    """What control groups have used so far; absent where a file cannot be read."""
    cpu: float | None = None
    memory: float | None = None
    read: float | None = None
    written: float | None = None
    for folder in map(Path, folders):
        cpu = first(cpu, _cpu_of_group(folder))
        memory = first(memory, _memory_of_group(folder))
        read = first(read, _io_of_group(folder, "rbytes", "Read"))
        written = first(written, _io_of_group(folder, "wbytes", "Write"))
    return Usage(cpu, memory, read, written)


def _cpu_of_group(folder: Path) -> float | None:
    found = reading(lambda: _stat(folder / "cpu.stat", "usage_usec") * MICROSECONDS)
    return first(found, reading(lambda: int(_text(folder / "cpuacct.usage")) * NANOSECONDS))


def _memory_of_group(folder: Path) -> float | None:
    """Without the pages of files, which the kernel gives back when somebody needs the memory."""
    found = reading(
        lambda: (
            int(_text(folder / "memory.current")) - _stat(folder / "memory.stat", "inactive_file")
        )
    )
    return first(
        found,
        reading(
            lambda: (
                int(_text(folder / "memory.usage_in_bytes"))
                - _stat(folder / "memory.stat", "total_inactive_file")
            )
        ),
    )


def _io_of_group(folder: Path, name: str, former_name: str) -> float | None:
    """Bytes that went to or came from devices; the page cache and network storage do not count."""
    found = reading(lambda: _io_stat(folder / "io.stat", name))
    former = folder / "blkio.throttle.io_service_bytes_recursive"
    return first(found, reading(lambda: _blkio(former, former_name)))


def _io_stat(path: Path, name: str) -> int:
    """``8:0 rbytes=1 wbytes=2 …``, a line for each device; the file is empty before the first
    byte."""
    fields = [field.partition("=") for line in _text(path).splitlines() for field in line.split()]
    return sum(int(value) for key, _, value in fields if key == name)


def _blkio(path: Path, name: str) -> int:
    """``8:0 Read 1``, a line for each device and operation."""
    fields = [line.split() for line in _text(path).splitlines()]
    return sum(int(found[2]) for found in fields if len(found) == 3 and found[1] == name)  # noqa: PLR2004 - as above


def _stat(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    raise KeyError(name)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX).decode()


@dataclass
class PodGroups:
    """The control groups of pods below ``folder``, the node's /sys/fs/cgroup.

    The kubelet names a pod's group by its UID: ``kubepods/burstable/podUID``, or with systemd
    ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice`` with ``_`` for
    ``-``. Both may lie below further groups.
    """

    folder: Path
    monotonic: Callable[[], float] = time.monotonic
    _roots: tuple[Path, ...] = ()
    _roots_at: float = float("-inf")
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def find(self, uid: str) -> tuple[str, ...]:
        """The folders of a pod's group, one for each tree; empty if it has none (any more)."""
        known = self._known.get(uid)
        if known and all(map(os.path.isdir, known)):
            return known
        found = self._find(uid)
        if not found and self.monotonic() - self._roots_at >= ROOT_SECONDS:
            self._roots, self._roots_at = tuple(self._search()), self.monotonic()
            found = self._find(uid)
        self._known.pop(uid, None)
        if found:
            self._known[uid] = found
        return found

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all other pods."""
        for gone in self._known.keys() - set(uids):
            del self._known[gone]

    def processes(self, uid: str) -> float | None:
        """How many processes a pod has; None in version 1, which does not list processes of other
        PID name spaces."""
        folders = self.find(uid)
        if not folders or not self._is_unified():
            return None
        groups = [folder for folder, _, _ in _walk(folders[0])]
        return reading(lambda: sum(_lines(Path(group, "cgroup.procs")) for group in groups))

    def _find(self, uid: str) -> tuple[str, ...]:
        return tuple(
            str(found) for root in self._roots for found in _candidates(root, uid) if found.is_dir()
        )

    def _is_unified(self) -> bool:
        return (self.folder / "cgroup.controllers").exists()

    def _search(self) -> Iterator[Path]:
        """The kubelet's folder, in each tree."""
        if self._is_unified():
            yield from _roots_below(self.folder)
            return
        for tree in _subfolders(self.folder):
            if CONTROLLERS & set(tree.name.split(",")):
                yield from _roots_below(tree)


def _candidates(root: Path, uid: str) -> Iterator[Path]:
    if not root.name.endswith(".slice"):
        for parent in (root, root / "burstable", root / "besteffort"):
            yield parent / f"pod{uid}"
        return
    stem, name = root.name.removesuffix(".slice"), f"pod{uid.replace('-', '_')}.slice"
    yield root / f"{stem}-{name}"
    for quality in ("burstable", "besteffort"):
        yield root / f"{stem}-{quality}.slice" / f"{stem}-{quality}-{name}"


def _roots_below(tree: Path) -> Iterator[Path]:
    level, left = [tree], FOLDERS_MAX
    for _ in range(ROOT_DEPTH_MAX):
        below: list[Path] = []
        for folder in level:
            for each in _subfolders(folder):
                left -= 1
                if left < 0:
                    return
                if each.name == "kubepods" or each.name.endswith("kubepods.slice"):
                    yield each
                else:
                    below.append(each)
        level = below


def _subfolders(folder: Path) -> list[Path]:
    """Without links: trees of version 1 have other names by links."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(each.path) for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    for number, found in enumerate(os.walk(folder)):
        if number == GROUPS_OF_POD_MAX:
            return
        yield found


def _lines(path: Path) -> int:
    """The number of lines; 0 for a group that has just vanished, as most containers do."""
    try:
        return _text(path).count("\n")
    except FileNotFoundError:
        return 0
