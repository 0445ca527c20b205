"""Many nodes and many pods at once, through the launcher: its memory, and what an event costs it.

    python -m benchmarks.pods_at_scale [--nodes 1000] [--pods 10000] [--gang 8] [--churn 40]

The whole platform with the launcher as a process of its own, on a control plane with kwok's nodes.
*Churn*: tasks of one pod come and go, one after the other; the launcher's processor time for each
event of its watches, on the cluster while it is empty and again while it is full, shows whether the
cost follows what changes or how much there is. (A task's whole life is in it: transactions and bus
as well.) What a full list costs is asked of ``kube_probe``, and shown by killing the launcher while
the cluster is full. Also called by the test of the large case.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from benchmarks.guard import run
from benchmarks.harness import BenchmarkError, Http, Platform, now_s, ready_nodes
from benchmarks.kube_harness import NAMESPACE, kubernetes, platform_on
from benchmarks.pod_watch import PodWatch, pods_of
from benchmarks.report import Benchmark, Goal, Report
from benchmarks.submit_to_running_pods import Side, last_running, stop, submit
from tools.cluster.programs import BuildError

BENCHMARK = Benchmark(
    name="pods_at_scale",
    alias="kube_large",
    question="Does the launcher's work follow what changes with 10,000 pods?",
    method=(
        "1,000 of kwok's nodes and 10,000 pods in gangs of 8 at once, the launcher as a process of"
        " its own; tasks of one pod come and go while the cluster is empty and while it is full."
    ),
    goals=(
        Goal(figure="partial_gangs", label="gangs that ran in part", at_most=0.0),
        Goal(
            figure="event_full_to_empty",
            label="launcher's time per event, full : empty",
            at_most=1.5,
        ),
    ),
    smoke=("--nodes", "10", "--pods", "32", "--churn", "2", "--settle", "0.5"),
    cluster=True,
)
GPUS = 16
REPOSITORY = Path(__file__).resolve().parents[1]
WAIT_SECONDS = 1_800.0
SETTLE_SECONDS = 5.0
LAUNCHER = "launcher"
# Every gang is assigned at once; a slow cluster may take longer than usual to come to the last one.
LONG_START_DEADLINE = {"SHIFTWORK_SCHEDULER_START_DEADLINE_SECONDS": "3600"}
# What it watches: nodes, its pods, others' pods, run objects.
KINDS = 4
WATCHES = re.compile(r'shiftwork_launcher_kube_calls_total\{answer="200",verb="watch"\} ([\d.e+]+)')
EVENTS = re.compile(r"shiftwork_launcher_kube_watch_events_total\{.*\} ([\d.e+]+)")


@dataclass(frozen=True)
class Large:
    """What was measured; sizes in MiB."""

    nodes: int
    pods: int
    running_s: float
    gone_s: float
    partial_gangs: int
    idle_mib: float
    full_mib: float
    # At most, until it was full.
    peak_mib: float
    # Of the launcher's process, in microseconds of processor time.
    event_us_empty: float
    event_us_full: float
    # Killed while the cluster is full: until its successor has listed everything and watches, and
    # the most that it has needed.
    takeover_s: float
    takeover_mib: float
    # Of the probe: see there.
    probe: dict[str, float]

    @property
    def kib_per_pod(self) -> float:
        """By how much the launcher grew for each pod."""
        return (self.full_mib - self.idle_mib) * 1024 / self.pods


class Launcher:
    """The launcher's process, observed from outside."""

    def __init__(self, up: Platform, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._up = up

    def _pid(self) -> int:
        return next(pid for pid, kind in self._up.processes().items() if kind == LAUNCHER)

    def memory(self) -> tuple[float, float]:
        """Resident memory now, and at most so far, in MiB."""
        found = dict[str, float]()
        for line in Path(f"/proc/{self._pid()}/status").read_text().splitlines():
            if line.startswith(("VmRSS:", "VmHWM:")):
                found[line.split(":")[0]] = int(line.split()[1]) / 1024
        return found["VmRSS"], found["VmHWM"]

    def spent(self) -> tuple[float, float]:
        """Processor time in seconds, and events of its watches, since it began."""
        return self._up.cpu_seconds()[LAUNCHER], self._sum(EVENTS)

    def _sum(self, what: re.Pattern[str]) -> float:
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            return sum(float(number) for number in what.findall(answer.read().decode()))

    async def killed(self) -> float:
        """Kill it; seconds until the one that is started in its place watches everything."""
        began = time.monotonic()
        os.kill(self._pid(), signal.SIGKILL)
        while True:
            await asyncio.sleep(0.1)
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(self._sum, WATCHES) >= KINDS:
                    return time.monotonic() - began
            if time.monotonic() - began > WAIT_SECONDS:
                raise BenchmarkError("no launcher watches again")


async def churn(http: Http, pods: PodWatch, launcher: Launcher, count: int) -> float:
    """Tasks of one pod, one after the other; microseconds of the launcher for each event."""
    spent, events = await asyncio.to_thread(launcher.spent)
    for _ in range(count):
        task = await submit(http, [1])
        await pods.until_running(1, task.keys(), seconds=WAIT_SECONDS)
        for name in task:
            await http.call("PUT", f"/v1/tasks/{name}/goal", {"goal": "stop"})
        await pods.until_gone(task.keys(), seconds=WAIT_SECONDS)
    await asyncio.sleep(1.0)
    spent_after, events_after = await asyncio.to_thread(launcher.spent)
    return (spent_after - spent) * 1e6 / (events_after - events)


@contextlib.asynccontextmanager
async def counted(what: str, total: int, count: Callable[[], int]) -> AsyncGenerator[None]:
    """A bar while the context is open: it takes minutes."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        shown = bar.add_task(what, total=total)

        async def follow() -> None:
            while True:
                bar.update(shown, completed=count())
                await asyncio.sleep(1.0)

        following = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            following.cancel()
            bar.update(shown, completed=count())


async def probed(kubeconfig: Path) -> dict[str, float]:
    """``kube_probe`` as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.kube_probe", str(kubeconfig), NAMESPACE),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise BenchmarkError(f"the probe ended with {process.returncode}")
    found: dict[str, float] = json.loads(output)
    return found


async def measure(
    nodes: int, count: int, gang: int, churned: int, settle_seconds: float = SETTLE_SECONDS
) -> Large:
    """Fill a cluster of so many nodes with so many pods, and empty it again."""
    port = free_port()
    with kubernetes(nodes, gpus=GPUS) as kube:
        path = kube.kubeconfig
        async with pods_of(path, NAMESPACE) as pods:
            settings = {"http_port": port}
            with platform_on(
                kube, apart=(LAUNCHER,), settings=settings, environment=LONG_START_DEADLINE
            ) as up:
                await asyncio.to_thread(up.start)
                http = Http(up.url, up.token)
                await ready_nodes(http, nodes)
                launcher = Launcher(up, port)
                event_us_empty = await churn(http, pods, launcher, churned)
                await pods.until_gone(seconds=WAIT_SECONDS)
                pods.clear()
                idle_mib, _ = launcher.memory()
                began, side = now_s(), Side()
                tasks = await submit(http, [gang] * (count // gang))
                made = sum(tasks.values())
                async with counted("pods running", made, pods.running):
                    await pods.until_running(made, seconds=WAIT_SECONDS)
                running_s = last_running(pods, tasks.keys()) - began
                side.look(pods, tasks)
                await asyncio.sleep(settle_seconds)
                full_mib, peak_mib = launcher.memory()
                event_us_full = await churn(http, pods, launcher, churned)
                probe = await probed(path)
                takeover_s = await launcher.killed()
                await asyncio.sleep(settle_seconds)
                _, takeover_mib = launcher.memory()
                began = now_s()
                async with counted("pods gone", made, lambda: made - pods.present()):
                    await stop(http, pods, tasks.keys(), seconds=WAIT_SECONDS)
                gone_s = now_s() - began
                http.close()
    return Large(
        nodes=nodes,
        pods=made,
        running_s=running_s,
        gone_s=gone_s,
        partial_gangs=side.partial,
        idle_mib=idle_mib,
        full_mib=full_mib,
        peak_mib=peak_mib,
        event_us_empty=event_us_empty,
        event_us_full=event_us_full,
        takeover_s=takeover_s,
        takeover_mib=takeover_mib,
        probe=probe,
    )


def free_port() -> int:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--gang", type=int, default=8)
    parser.add_argument("--churn", type=int, default=40)
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS)
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.nodes} simulated nodes, {asked.pods} pods in gangs of {asked.gang}",
        BENCHMARK.goals,
    )
    try:
        found = await measure(asked.nodes, asked.pods, asked.gang, asked.churn, asked.settle)
    except BuildError as problem:
        report.problem = str(problem)
        report.publish()
        return
    report.measured |= {
        "running_s": round(found.running_s, 1),
        "gone_s": round(found.gone_s, 1),
        "partial_gangs": found.partial_gangs,
        "launcher_idle_mib": round(found.idle_mib, 1),
        "launcher_full_mib": round(found.full_mib, 1),
        "launcher_peak_mib": round(found.peak_mib, 1),
        "launcher_kib_per_pod": round(found.kib_per_pod, 2),
        "launcher_takeover_mib": round(found.takeover_mib, 1),
        "takeover_s": round(found.takeover_s, 2),
        "event_empty_us": round(found.event_us_empty),
        "event_full_us": round(found.event_us_full),
        "event_full_to_empty": round(found.event_us_full / found.event_us_empty, 2),
    }
    report.measured |= {f"view_{name}": round(value, 3) for name, value in found.probe.items()}
    report.publish()


if __name__ == "__main__":
    run(main)
