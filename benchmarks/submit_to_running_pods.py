"""The Kubernetes path, from submission to a gang whose every pod is bound and runs.

    python -m benchmarks.submit_to_running_pods [--nodes 1000] [--burst 2000]
        [--rounds 3] [--gangs 10]

A real control plane with kwok's nodes. First, and once more at the end, a bare client creates and
deletes the same pods: its rate and its times are the floor. Between them the whole platform, with
its launcher on that cluster, is given gangs of 1, 8 and 64 one after the other, and the burst, in
gangs of 8, as batches over HTTP. One watch that both sides share reports when a pod runs; the API
server's audit log counts the writes of each user.

A gang is partly running while some of its pods run and others do not: as it starts, for as long as
the scheduler and kwok take for its pods (reported beside the bare client's, whose pods wait for
no other), and never otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.bare_pods import COMMAND, Bare, gang, named
from benchmarks.guard import run
from benchmarks.harness import BenchmarkError, Http, Platform, now_s, parts, ready_nodes
from benchmarks.kube_harness import LAUNCHER, Kube, Writes, kubernetes, platform_on
from benchmarks.kube_harness import NAMESPACE as TASKS
from benchmarks.pod_watch import TASK, PodWatch, pods_of
from benchmarks.report import Benchmark, Goal, Report, spread
from tools.cluster.programs import BuildError

# A gang that is partly running for longer than this, and twice as long as the bare client's, is
# no gang.
PARTLY_SECONDS_MAX = 5.0
PARTLY = Goal(
    figure="partly_running_max_ms",
    label="a gang's first pod to its last",
    at_most=PARTLY_SECONDS_MAX * 1000,
)
BENCHMARK = Benchmark(
    name="submit_to_running_pods",
    alias="p11",
    question="How soon do the pods of submitted gangs run?",
    method=(
        "Gangs of 1, 8 and 64 pods, then a burst in gangs of 8, on a real control plane with kwok's"
        " nodes. Floor: a bare client creates the same pods on the same control plane."
    ),
    goals=(
        Goal(figure="burst_percent_of_bare", label="burst, % of the bare rate", at_least=85.0),
        Goal(figure="writes_per_pod_max", label="API writes per pod until it runs", at_most=3.0),
        Goal(figure="partial_gangs", label="gangs that ran in part", at_most=0.0),
        PARTLY,
    ),
    smoke=("--nodes", "64", "--burst", "64", "--rounds", "1", "--gangs", "1"),
    cluster=True,
)
SIZES = (1, 8, 64)
BURST_GANG = 8
BATCH = 50
STOPS_AT_ONCE = 16
WAIT_SECONDS = 300.0
SETTLE_SECONDS = 1.0
# After their end, objects of runs go so soon, so that the whole life can be counted.
KEEP_SECONDS = 10.0
GPUS = 16
ENDPOINTS = ("endpoint", "endpointslice")
_names = itertools.count()


@dataclass
class Side:
    """What one of the two, bare client or platform, needed."""

    gangs: dict[int, list[float]] = field(default_factory=lambda: {size: [] for size in SIZES})
    pods_per_s: list[float] = field(default_factory=list)
    gone_per_s: list[float] = field(default_factory=list)
    # Milliseconds of processor time for each pod of the cheapest burst, by program.
    cpu_ms: dict[str, float] = field(default_factory=dict)
    # Writes for each pod of the last burst, by user.
    wrote: dict[str, float] = field(default_factory=dict)
    # How long each gang was partly running as it started.
    partly: list[float] = field(default_factory=list)
    # Gangs of which some pod ran and not all of them came to run, or one was over too early.
    partial: int = 0
    writes: dict[str, float] = field(default_factory=dict)

    def look(self, pods: PodWatch, sizes: dict[str, int]) -> None:
        """Record how complete the gangs (task -> pods) were, before they are stopped."""
        for (task, _), lives in pods.gangs().items():
            ran = sorted(life.running for life in lives if life.running and not life.over)
            if task in sizes and (ran or any(life.over for life in lives)):
                self.partial += len(ran) != sizes[task]
                self.partly.append(ran[-1] - ran[0])

    def spend(self, before: dict[str, float], after: dict[str, float], size: int) -> None:
        """Record the processor time of a burst of so many pods, if none took less."""
        used = {name: s * 1000 / size for name, s in parts(before, after).items()}
        if not self.cpu_ms or sum(used.values()) < sum(self.cpu_ms.values()):
            self.cpu_ms = used


def last_running(pods: PodWatch, tasks: Collection[str]) -> float:
    """When the last of these pods ran."""
    return max(life.running for life in pods.lives.values() if life.gang[0] in tasks)


def last_gone(pods: PodWatch, tasks: Collection[str]) -> float:
    """When the last of these pods was gone."""
    return max(life.gone for life in pods.lives.values() if life.gang[0] in tasks)


async def bare_gangs(kube: Kube, client: Bare, pods: PodWatch, side: Side, count: int) -> None:
    """Gangs of each size, one after the other."""
    for size in SIZES:
        for number in range(count + 1):
            name = named("g")
            made = gang(kube, name, size, number * size)
            began = await client.do("create", made)
            await pods.until_running(size, {name}, seconds=WAIT_SECONDS)
            if number:  # the first warms the connections up
                side.gangs[size].append(last_running(pods, {name}) - began)
            await client.do("delete", made)
            await pods.until_gone(seconds=WAIT_SECONDS)
            pods.clear()


async def bare_burst(kube: Kube, client: Bare, pods: PodWatch, side: Side, count: int) -> None:
    """The burst, as fast as it goes."""
    names = [named("b") for _ in range(count // BURST_GANG)]
    made = [
        pod
        for number, name in enumerate(names)
        for pod in gang(kube, name, BURST_GANG, number * BURST_GANG, number % GPUS)
    ]
    before, writes = kube.cpu_seconds() | client.cpu_seconds(), kube.writes()
    began = await client.do("create", made)
    await pods.until_running(len(made), seconds=WAIT_SECONDS)
    side.spend(before, kube.cpu_seconds() | client.cpu_seconds(), len(made))
    side.wrote = writes.per(len(made))
    side.pods_per_s.append(len(made) / (last_running(pods, set(names)) - began))
    side.look(pods, dict.fromkeys(names, BURST_GANG))
    began = await client.do("delete", made)
    await pods.until_gone(seconds=WAIT_SECONDS)
    side.gone_per_s.append(len(made) / (last_gone(pods, set(names)) - began))
    pods.clear()


async def submit(http: Http, sizes: Iterable[int]) -> dict[str, int]:
    """Submit gangs as batches; each new task with its size."""
    bodies: list[dict[str, Any]] = [
        {
            "name": f"gang-{next(_names)}",
            "nodes": size,
            "gpus_per_node": 1,
            "command": list(COMMAND),
            # No program saves anything, so a stop takes effect at once.
            "preemption": {"mode": "kill"},
        }
        for size in sizes
    ]
    found: dict[str, int] = {}
    for first in range(0, len(bodies), BATCH):
        batch = bodies[first : first + BATCH]
        status, answer = await http.call("POST", "/v1/tasks:batch", {"tasks": batch})
        items: list[dict[str, Any]] = answer.get("items", [])
        bad = [item for item in items if item["status"] != 201]
        if status != 200 or bad:
            raise BenchmarkError(f"{status} {bad[:1] or answer}")
        pairs = zip(items, batch, strict=True)
        found |= {item["task"]["id"]: body["nodes"] for item, body in pairs}
    return found


async def stop(
    http: Http, pods: PodWatch, tasks: Collection[str], *, seconds: float = WAIT_SECONDS
) -> None:
    """End these tasks and wait until their pods are gone."""
    gate = asyncio.Semaphore(STOPS_AT_ONCE)

    async def one(task: str) -> None:
        async with gate:
            status, found = await http.call("PUT", f"/v1/tasks/{task}/goal", {"goal": "stop"})
        if status >= 300:
            raise BenchmarkError(f"stop {task}: {status} {found}")

    await asyncio.gather(*map(one, tasks))
    await pods.until_gone(seconds=seconds)
    await http.until(tasks, seconds=seconds)


async def our_gangs(http: Http, pods: PodWatch, side: Side, writes: Writes, count: int) -> None:
    """Gangs of each size, one after the other."""
    for size in SIZES:
        tasks: dict[str, int] = {}
        for number in range(count + 1):
            began = now_s()
            task = await submit(http, [size])
            await pods.until_running(size, task.keys(), seconds=WAIT_SECONDS)
            if number:
                side.gangs[size].append(last_running(pods, task.keys()) - began)
            tasks |= task
            side.look(pods, task)
            await stop(http, pods, task.keys())
            pods.clear()
        made = writes.of_tasks(LAUNCHER, tasks.keys(), verbs={"create"})
        side.writes[f"gang_{size}"] = made.total() / (size * len(tasks))


async def our_burst(
    connected: tuple[Kube, Platform, Http], pods: PodWatch, side: Side, count: int
) -> dict[str, int]:
    """The burst, as fast as it goes; its tasks."""
    kube, up, http = connected
    before, writes = kube.cpu_seconds() | up.cpu_seconds(), kube.writes()
    began = now_s()
    tasks = await submit(http, [BURST_GANG] * (count // BURST_GANG))
    await pods.until_running(sum(tasks.values()), seconds=WAIT_SECONDS)
    size = sum(tasks.values())
    side.spend(before, kube.cpu_seconds() | up.cpu_seconds(), size)
    side.wrote = writes.per(size)
    side.pods_per_s.append(size / (last_running(pods, tasks.keys()) - began))
    made = writes.of_tasks(LAUNCHER, tasks.keys())
    side.writes["burst"] = made.total() / size
    side.look(pods, tasks)
    await asyncio.sleep(SETTLE_SECONDS)
    began = now_s()
    await stop(http, pods, tasks.keys())
    side.gone_per_s.append(size / (last_gone(pods, tasks.keys()) - began))
    pods.clear()
    return tasks


async def swept(kube: Kube) -> None:
    """Wait until nothing of any run is left in the cluster."""
    path = f"/api/v1/namespaces/{TASKS}"
    ends_at = now_s() + WAIT_SECONDS
    kinds = ("configmaps", "secrets", "services", "pods")
    while True:
        left = [
            thing["metadata"]["name"]
            for kind in kinds
            for thing in await asyncio.to_thread(kube.plane.api.items, f"{path}/{kind}")
            if TASK in (thing["metadata"].get("labels") or {})
        ]
        if not left:
            return
        if now_s() > ends_at:
            raise BenchmarkError(f"still there: {left[:3]}")
        await asyncio.sleep(1.0)


async def ours(kube: Kube, pods: PodWatch, asked: argparse.Namespace) -> Side:
    """Everything through the platform."""
    side = Side()
    with platform_on(kube, settings={"kube_pods_keep_seconds": KEEP_SECONDS}) as up:
        up.start()
        http = Http(up.url, up.token)
        await ready_nodes(http, len(kube.node_ids))
        writes = kube.writes()
        await our_gangs(http, pods, side, writes, asked.gangs)
        tasks: dict[str, int] = {}
        for _ in range(asked.rounds):
            # What is left of the last one would be cleared away during the next.
            await swept(kube)
            writes = kube.writes()
            tasks = await our_burst((kube, up, http), pods, side, asked.burst)
        await swept(kube)
        lives = writes.of_tasks(LAUNCHER, tasks.keys())
        side.writes["whole_life"] = lives.total() / sum(tasks.values())
        side.writes |= {
            f"whole_life_{verb}_{resource}": count / sum(tasks.values())
            for (verb, resource), count in sorted(lives.items())
        }
        http.close()
    return side


async def both(asked: argparse.Namespace) -> tuple[Side, Side]:
    """The platform's figures and the bare client's."""
    bare = Side()
    batch = asked.endpoints_batch
    flags = tuple(f"--{kind}-updates-batch-period={batch}s" for kind in ENDPOINTS)
    with kubernetes(asked.nodes, gpus=GPUS, controller_flags=flags) as kube:
        async with pods_of(kube.kubeconfig, TASKS) as pods:
            with Bare(kube) as client:
                await bare_gangs(kube, client, pods, bare, asked.gangs)
                for _ in range(asked.rounds - 1):
                    await bare_burst(kube, client, pods, bare, asked.burst)
                our = await ours(kube, pods, asked)
                await bare_burst(kube, client, pods, bare, asked.burst)
    return our, bare


async def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000, help="at least 64")
    parser.add_argument("--burst", type=int, default=2_000, help="pods, in gangs of 8")
    parser.add_argument("--rounds", type=int, default=3, help="bursts of each side")
    parser.add_argument("--gangs", type=int, default=10, help="gangs of each size")
    parser.add_argument(
        "--endpoints-batch",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long controllers join changes of a Service (0: at once, as by default)",
    )
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.nodes} simulated nodes, a burst of {asked.burst} pods",
        BENCHMARK.goals,
    )
    try:
        fill(report, *await both(asked))
    except BuildError as problem:
        report.problem = str(problem)
    report.publish()


def fill(report: Report, our: Side, bare: Side) -> None:
    """The figures of both sides."""
    # A gang starts no quicker than the cluster starts pods without a gang.
    slowest_ms = 1000 * max(PARTLY_SECONDS_MAX, 2 * max(bare.partly))
    report.goals = tuple(
        replace(goal, at_most=slowest_ms) if goal is PARTLY else goal for goal in report.goals
    )
    for side, figures in ((our, report.measured), (bare, report.floor)):
        for size in SIZES:
            figures.update(spread(side.gangs[size], f"gang_{size}_running"))
        figures.update(spread(side.partly, "partly_running"))
        figures["burst_pods_per_s"] = round(max(side.pods_per_s), 1)
        figures["burst_gone_pods_per_s"] = round(max(side.gone_per_s), 1)
        for name, ms in sorted(side.cpu_ms.items()):
            figures[f"cpu_{name.replace('-', '_')}_ms_per_pod"] = round(ms, 2)
        figures["cpu_sum_ms_per_pod"] = round(sum(side.cpu_ms.values()), 2)
        for user, count in sorted(side.wrote.items()):
            figures[f"wrote_{user.replace('-', '_')}_per_pod"] = round(count, 3)
    measured = report.measured
    measured["burst_percent_of_bare"] = round(100 * max(our.pods_per_s) / max(bare.pods_per_s), 1)
    # What the rates would be to one another if nothing but processor time counted.
    measured["bare_cpu_percent_of_ours"] = round(
        100 * sum(bare.cpu_ms.values()) / sum(our.cpu_ms.values()), 1
    )
    launches = {key: n for key, n in our.writes.items() if not key.startswith("whole_life")}
    measured["writes_per_pod_max"] = round(max(launches.values()), 3)
    measured |= {f"writes_per_pod_{key}": round(n, 3) for key, n in our.writes.items()}
    measured["partial_gangs"] = our.partial


if __name__ == "__main__":
    run(main)
