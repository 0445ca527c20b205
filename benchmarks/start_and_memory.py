"""Footprint and start of the all-in-one.

    python -m benchmarks.start_and_memory [--queued 2000] [--starts 3]

Start: from the start of ``shiftwork up`` as a process to its line that it is ready; and on to the
first byte that a first task's child writes. Restart: the same folder once more after an orderly
end. Memory: proportional set size of everything that belongs to the platform (the services'
process, NATS, PostgreSQL with all its backends, the nodes' supervisors), idle, and again with the
queue full. Times are the best of some starts; the floor is ``initdb``, the server's start and the
imports, each alone.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.guard import run
from benchmarks.harness import (
    BenchmarkError,
    Http,
    Platform,
    now_s,
    ready_nodes,
    running_platform,
    up,
    writes_its_time,
    written_times,
)
from benchmarks.report import Benchmark, Goal, Report
from services.allinone.embedded.credentials import Credentials, ensure_credentials
from services.allinone.embedded.postgres import Postgres

BENCHMARK = Benchmark(
    name="start_and_memory",
    alias="p10",
    question="How long does the platform of one machine take to start, and how much memory?",
    method=(
        "`shiftwork up` with two virtual nodes on an empty folder, then once more on the same"
        " folder, the best of three; memory is proportional set size of all its processes. Floor:"
        " `initdb`, the server's start and the imports, each alone."
    ),
    goals=(
        Goal(
            figure="first_start_to_running_s",
            label="empty folder to first task running",
            at_most=3.0,
            floor="initdb_and_start_s",
        ),
        Goal(figure="restart_s", label="restart to ready", at_most=1.2, floor="imports_s"),
        Goal(figure="idle_pss_mib", label="memory, idle", at_most=220.0),
        Goal(
            figure="queued_more_pss_mib_per_100k",
            label="memory more for 100,000 queued",
            at_most=100.0,
        ),
    ),
    smoke=("--starts", "1", "--queued", "50", "--quick"),
)
NODES, SLOTS = 2, 1
BATCH = 250
BATCHES_AT_ONCE = 2
# With fewer, what grows once (buffers, caches) would be taken for what grows with each task.
EXTRAPOLATED_FROM = 50_000
SETTLE_SECONDS = 5.0
FIRST_TASK_SECONDS_MAX = 60.0
PROJECTED_SECONDS_MAX = 300.0
IMPORTS = "import uvloop, httpx, services.allinone.platform_process, services.allinone.composition"


@dataclass(frozen=True)
class Starts:
    """Seconds of one folder's first start, its first task, and the start after an orderly end."""

    first: float
    first_task: float
    restart: float


async def first_task(platform: Platform, began: float) -> float:
    """Seconds from ``began`` to the first byte of a task submitted now."""
    http = Http(platform.url, platform.token)
    out = platform.folder / "first"
    await http.submit(name="first", command=writes_its_time(out), working_directory="/")
    ends_at = now_s() + FIRST_TASK_SECONDS_MAX
    while (times := written_times(out, 1)) is None:
        if now_s() > ends_at:
            raise BenchmarkError("the first task never ran")
        await asyncio.sleep(0.005)
    http.close()
    return times[0] - began


async def starts() -> Starts:
    """One empty folder, started twice."""
    with running_platform(up(NODES, SLOTS)) as platform:
        began = now_s()
        first = platform.start()
        task = await first_task(platform, began)
        platform.stop()
        again = platform.start()
        return Starts(first, task, again)


async def floor() -> dict[str, float]:
    """The parts of a start that are not ours to avoid, each alone."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-floor-"))
    try:
        ensure_credentials(folder)
        found: dict[str, float] = {}
        for name in ("initdb_and_start_s", "server_restart_s"):
            postgres = Postgres(folder, Credentials(folder))
            began = time.monotonic()
            await postgres.start()
            found[name] = round(time.monotonic() - began, 3)
            await postgres.stop()
        postgres.remove_temporary()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, program in (("python_s", "pass"), ("imports_s", IMPORTS)):
        began = time.monotonic()
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=True)
        found[name] = round(time.monotonic() - began, 3)
    return found


async def fill(http: Http, count: int) -> float:
    """Queue so many tasks by ``POST /v1/tasks:batch``; returns the seconds it took."""
    began = time.monotonic()
    gate = asyncio.Semaphore(BATCHES_AT_ONCE)

    async def one(first: int) -> None:
        size = min(BATCH, count - first)
        tasks = [
            {"name": f"queued-{first + index}", "command": ["/bin/true"], "working_directory": "/"}
            for index in range(size)
        ]
        async with gate:
            status, found = await http.call("POST", "/v1/tasks:batch", {"tasks": tasks})
        bad: list[Any] = [each for each in found["items"] if each["status"] != 201]
        if status != 200 or bad:
            raise BenchmarkError(f"{status} {bad[:1]}")

    async with asyncio.TaskGroup() as group:
        for first in range(0, count, BATCH):
            group.create_task(one(first))
    return time.monotonic() - began


async def queue_length(http: Http) -> int:
    """The scheduler's queue length, from ``explain`` of the last task in it."""
    page = await http.get("/v1/tasks?limit=1&sort=-submitted_at")
    status, found = await http.call("GET", f"/v1/tasks/{page['items'][0]['id']}/explain")
    return int(found["queue_length"]) if status == 200 else 0


async def memory(count: int, settle_seconds: float, report: Report) -> None:
    """Idle, then with a full queue behind tasks that hold every node."""
    with running_platform(up(NODES, SLOTS)) as platform:
        platform.start()
        http = Http(platform.url, platform.token)
        await ready_nodes(http, NODES)
        await asyncio.sleep(settle_seconds)
        idle = platform.pss_mib()
        for index in range(NODES):
            await http.submit(
                name=f"holds-{index}", command=["/bin/sleep", "86400"], working_directory="/"
            )
        report.measured["idle_pss_mib"] = round(sum(idle.values()), 1)
        report.measured |= {
            f"idle_pss_{kind}_mib": round(size, 1) for kind, size in sorted(idle.items())
        }
        seconds = await fill(http, count)
        report.measured["submit_batch_tasks_per_s"] = round(count / seconds)
        ends_at = time.monotonic() + PROJECTED_SECONDS_MAX
        while (length := await queue_length(http)) < count:
            if time.monotonic() > ends_at:
                raise BenchmarkError(f"the scheduler's queue has {length} of {count}")
            await asyncio.sleep(0.5)
        await asyncio.sleep(settle_seconds)
        full = platform.pss_mib()
        grown = sum(full.values()) - sum(idle.values())
        report.measured["queued_more_pss_mib"] = round(grown, 1)
        if count >= EXTRAPOLATED_FROM:
            report.measured["queued_more_pss_mib_per_100k"] = round(grown * 100_000 / count, 1)
        report.measured |= {
            f"queued_more_pss_{kind}_mib": round(full[kind] - idle.get(kind, 0.0), 1)
            for kind in sorted(full)
        }
        before = platform.cpu_seconds()
        await asyncio.sleep(settle_seconds)
        after = platform.cpu_seconds()
        used = sum(after.values()) - sum(before.values())
        report.measured["queued_idle_cpu_percent"] = round(used / settle_seconds * 100, 2)
        http.close()


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=2_000)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="do not wait until it is at rest")
    asked = parser.parse_args()
    report = Report(BENCHMARK, f"{asked.queued} tasks queued", BENCHMARK.goals)
    floors = [await floor() for _ in range(asked.starts)]
    report.floor |= {name: min(each[name] for each in floors) for name in floors[0]}
    runs = [await starts() for _ in range(asked.starts)]
    report.measured["first_start_s"] = round(min(run.first for run in runs), 3)
    report.measured["first_start_to_running_s"] = round(min(run.first_task for run in runs), 3)
    report.measured["restart_s"] = round(min(run.restart for run in runs), 3)
    if asked.queued:
        await memory(asked.queued, 0.2 if asked.quick else SETTLE_SECONDS, report)
    report.publish()


if __name__ == "__main__":
    run(main)
