"""What the chaos tests do to the platform, by a schedule: kill -9 and freezing of every part,
frozen tasks, and a full disk.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.allinone.composition import WIRINGS
from services.allinone.dev import Dev
from services.launcher.runtimes.node import proc
from tests.chaos.invariants import living_processes
from tests.kit.small_disk import SmallDisk

SERVERS = ("nats", "postgresql")
# Every part comes once before any comes twice.
PARTS = (*(wiring.name for wiring in WIRINGS), *SERVERS, "supervisor", "task")
DISK = "disk"
# A task's process is never killed from outside: that would be its own failure, and rightly so.
FROZEN_ONLY = ("task",)


@dataclass(frozen=True)
class Fault:
    """One thing that happens to one part. ``stall_seconds``: stopped and continued, not killed."""

    after_seconds: float
    parts: tuple[str, ...]
    index: int
    stall_seconds: float = 0.0


def schedule(
    seed: int, pause_seconds: tuple[float, float], parts_all: Sequence[str] = PARTS
) -> Callable[[], Fault]:
    """The endless schedule of a seed, one fault for each call."""
    chance = random.Random(f"faults {seed}")
    round_of: list[str] = []

    def draw() -> str:
        if not round_of:
            round_of.extend(chance.sample(parts_all, len(parts_all)))
        return round_of.pop()

    def following() -> Fault:
        count = 2 if chance.random() < 0.2 else 1
        parts = tuple(dict.fromkeys(draw() for _ in range(count)))
        stall = chance.uniform(0.5, 7.0) if chance.random() < 0.3 else 0.0
        if not stall and {DISK, *FROZEN_ONLY} & {*parts}:
            stall = chance.uniform(0.5, 7.0)
        return Fault(chance.uniform(*pause_seconds), parts, chance.randrange(1 << 16), stall)

    return following


@dataclass
class Faults:
    """Carries faults out on one platform and remembers them."""

    dev: Dev
    log_line: Callable[[str], None]
    # What is in the command line of every task's process.
    tasks_marker: str
    disk: SmallDisk | None = None
    done: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    async def run(self, following: Callable[[], Fault]) -> None:
        """One fault after another, until cancelled; whatever is stopped then goes on."""
        stopped: set[int] = set()
        try:
            while True:
                fault = following()
                await asyncio.sleep(fault.after_seconds)
                if DISK in fault.parts:
                    await self._fill(fault.stall_seconds)
                parts = [part for part in fault.parts if part != DISK]
                pids = {part: self._pid(part, fault.index) for part in parts}
                for part, pid in pids.items():
                    await self._strike(part, pid, fault, stopped)
        finally:
            for pid in stopped:
                _signal(pid, signal.SIGCONT)

    async def _fill(self, seconds: float) -> None:
        assert self.disk is not None, "a disk can be filled only where there is a small one"
        self._note(f"disk full for {seconds:.1f} s")
        try:
            await asyncio.to_thread(self.disk.fill)
            await asyncio.sleep(seconds)
        finally:
            self.disk.empty()

    def _note(self, text: str) -> None:
        self.done.append(f"{time.monotonic() - self.began:7.2f} s  {text}")
        self.log_line(self.done[-1])

    async def _strike(self, part: str, pid: int, fault: Fault, stopped: set[int]) -> None:
        stalls = fault.stall_seconds > 0
        what = f"freeze {fault.stall_seconds:.1f} s" if stalls else "kill -9"
        self._note(f"{what} {part} " + (str(pid) if pid else "(down already)"))
        if not pid:
            return
        if stalls:
            stopped.add(pid)
            _signal(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.stall_seconds)
            _signal(pid, signal.SIGCONT)
            stopped.discard(pid)
        else:
            _signal(pid, signal.SIGKILL)

    def _pid(self, part: str, index: int) -> int:
        """The process to strike now; 0 if it is down."""
        if part in SERVERS:
            server = self.dev.servers.nats if part == "nats" else self.dev.servers.postgres
            return server.child.pid if server.child is not None and server.alive else 0
        if part == "supervisor":
            locks = sorted((self.dev.data_folder.machine / "nodes").glob("*/lock"))
            holder = proc.by_signature(locks[index % len(locks)].read_text()) if locks else None
            return holder.pid if holder is not None else 0
        if part == "task":
            living = [process.pid for process in living_processes(self.tasks_marker)]
            return living[index % len(living)] if living else 0
        own = [number for name, number in self.dev.processes.instances() if name == part]
        return self.dev.processes.pid(part, own[index % len(own)])


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
