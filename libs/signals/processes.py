"""Measures the processes of ranks: what all processes of one rank use together.

A rank's processes are its main process, everything below it, and everything in its session. Where
the rank has a control group (version 2), that is asked instead, because it also counts processes
that hide their descent and those that are over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from libs.contracts.messages import RankValues
from libs.signals.control_groups import Usage, first, read_groups
from libs.signals.rates import Rates
from libs.signals.readings import reading


@dataclass(frozen=True, slots=True)
class RankProcesses:
    """Where the processes of one rank are found. ``key`` names the rank and its start."""

    key: tuple[str, int, int]
    # Its main process; 0: not known.
    pid: int = 0
    # When that began, in clock ticks since boot, as in /proc; 0: not known.
    ticks: int = 0
    # The folders of its control groups; empty: it has none.
    groups: tuple[str, ...] = ()


class ProcessTable(Protocol):
    """All processes of this machine at one moment."""

    def members(self, rank: RankProcesses) -> frozenset[int]:
        """The numbers of a rank's processes; empty if its main process is gone."""
        ...

    def usage(self, pid: int) -> Usage | None:
        """None if it is gone."""
        ...


@dataclass
class RankSampler:
    """Samples ranks. ``processes`` reads the table of processes again for each sample."""

    processes: Callable[[], ProcessTable]
    _rates: Rates = field(default_factory=Rates)

    def sample(
        self,
        ranks: Sequence[RankProcesses],
        now_s: float,
        gpu_memory: Mapping[int, float] | None = None,
    ) -> dict[tuple[str, int, int], RankValues]:
        """Measure each rank. ``gpu_memory``: bytes on GPUs by process; None: not known."""
        table = self.processes()
        found: dict[tuple[str, int, int], RankValues] = {}
        for rank in ranks:
            pids = table.members(rank)
            if not pids:
                # Its processes are gone, or have not begun: a gap, not a rank that uses nothing.
                continue
            found[rank.key] = self._measure(rank, pids, table, now_s, gpu_memory)
        self._rates.keep({(key, name) for key in found for name in ("cpu", "read", "write")})
        return found

    def _measure(
        self,
        rank: RankProcesses,
        pids: frozenset[int],
        table: ProcessTable,
        now_s: float,
        gpu_memory: Mapping[int, float] | None,
    ) -> RankValues:
        each = [usage for usage in map(table.usage, sorted(pids)) if usage is not None]
        groups = read_groups(rank.groups)
        cpu_s = first(groups.cpu_seconds, _total(usage.cpu_seconds for usage in each))
        read_bytes = first(groups.read_bytes, _total(usage.read_bytes for usage in each))
        written_bytes = first(groups.write_bytes, _total(usage.write_bytes for usage in each))
        key = rank.key
        return RankValues(
            cpu_cores=self._rates.rate((key, "cpu"), cpu_s, now_s),
            memory_bytes=first(groups.memory_bytes, _total(usage.memory_bytes for usage in each)),
            read_bytes_per_second=self._rates.rate((key, "read"), read_bytes, now_s),
            write_bytes_per_second=self._rates.rate((key, "write"), written_bytes, now_s),
            processes=float(len(pids)),
            gpu_process_memory_bytes=(
                None if gpu_memory is None else sum(gpu_memory.get(pid, 0.0) for pid in pids)
            ),
        )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum of what could be read; None if nothing could."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class SystemProcesses:
    """The processes of this machine, through psutil, as they are when it is made."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._sessions: dict[int, list[int]] = {}
        for pid in psutil.pids():
            found = _parent_and_session(pid)
            if found is not None:
                self._children.setdefault(found[0], []).append(pid)
                self._sessions.setdefault(found[1], []).append(pid)

    def members(self, rank: RankProcesses) -> frozenset[int]:
        """See ``ProcessTable``."""
        listed = frozenset(_listed(rank.groups))
        if listed or not rank.pid:
            return listed
        ticks = _ticks(rank.pid)
        if ticks is None or (rank.ticks and ticks != rank.ticks):
            # It is gone, or the number belongs to another process by now.
            return frozenset()
        found, todo = {rank.pid}, [rank.pid, *self._sessions.get(rank.pid, ())]
        while todo:
            pid = todo.pop()
            found.add(pid)
            todo += [child for child in self._children.get(pid, ()) if child not in found]
        return frozenset(found)

    def usage(self, pid: int) -> Usage | None:
        """See ``ProcessTable``. The time of children that are over and were waited for counts: it
        would be missing otherwise."""
        try:
            process = psutil.Process(pid)
        except (psutil.Error, OSError):
            return None

        def read(take: Callable[[], float]) -> float | None:
            return reading(take, psutil.Error)

        return Usage(
            cpu_seconds=read(lambda: sum(process.cpu_times()[:4])),
            memory_bytes=read(lambda: process.memory_info().rss),
            read_bytes=read(lambda: process.io_counters().read_bytes),
            write_bytes=read(lambda: process.io_counters().write_bytes),
        )


def _listed(groups: Iterable[str]) -> list[int]:
    """The processes that the first readable control group lists."""
    for folder in groups:
        with suppress(OSError, ValueError):
            return [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
    return []


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat behind the name, which may hold anything."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
        return raw[raw.rindex(b")") + 2 :].split()
    except (OSError, ValueError):
        return None


def _parent_and_session(pid: int) -> tuple[int, int] | None:
    fields = _stat_fields(pid)
    return (int(fields[1]), int(fields[3])) if fields and len(fields) > 3 else None  # noqa: PLR2004 - up to the session


def _ticks(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[19]) if fields and len(fields) > 19 else None  # noqa: PLR2004 - up to the start
