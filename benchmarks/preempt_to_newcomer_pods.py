"""P5 through Kubernetes: preemption with pods.

    python -m benchmarks.preempt_to_newcomer_pods [--rounds 10] [--wide 64] [--wide-rounds 3]
        [--nodes KUBECONFIG --host ADDRESS]

On a real control plane with kwok's nodes, each of which holds one victim (a pod with the node's
only GPU). Three parts:

narrow   a gang of high priority over 4 nodes; victims acknowledge as ``kube_programs`` plays them.
         From its submission on: asked, acknowledged, their pods gone, its pods running; it is
         stopped, and the victims' next attempts run.
wide     the same over 64 nodes.
silent   four victims that never answer: how far from its deadline each one's pod is gone.

A simulated program does not leave by itself, so the launcher deletes its pod as soon as it has
acknowledged (``exit_grace_seconds`` 0). Floor: the bare client deletes as many pods and, as soon as
they are gone, creates as many on the same nodes.

With ``--nodes`` also on a cluster that runs containers: see ``preempt_on_real_nodes.py``.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path

from benchmarks import preempt_on_real_nodes
from benchmarks.bare_pods import COMMAND, Bare, gang, named
from benchmarks.guard import run
from benchmarks.harness import Http, ready_nodes, seconds
from benchmarks.kube_harness import Cluster, kubernetes, platform_on
from benchmarks.kube_programs import Programs
from benchmarks.pod_watch import PodWatch, client_of, pods_of
from benchmarks.preempt_rounds import SETTLE_SECONDS, WAIT_SECONDS, Found, Preemptions
from benchmarks.report import Benchmark, Goal, Report, spread
from tools.cluster.programs import BuildError

BENCHMARK = Benchmark(
    name="preempt_to_newcomer_pods",
    alias="p5_kubernetes",
    question="How soon do a newcomer's pods run that preempt others?",
    method=(
        "The same on a real control plane with kwok's nodes of one GPU, each held by a"
        " victim of one pod. Floor: a bare client deletes as many pods and, once they are"
        " gone, creates as many."
    ),
    goals=(
        Goal(
            figure="silent_off_deadline_max_ms",
            label="silent victim's pod gone, off its deadline",
            at_most=200.0,
        ),
        Goal(
            figure="acknowledged_steps_lost", label="acknowledged steps lost, 4 nodes", at_most=0.0
        ),
        Goal(
            figure="wide_acknowledged_steps_lost",
            label="acknowledged steps lost, 64 nodes",
            at_most=0.0,
        ),
    ),
    smoke=("--rounds", "1", "--wide", "0"),
    cluster=True,
    variables={"NODES": "--nodes", "HOST": "--host"},
)
NODES_GOAL = Goal(
    figure="nodes_acknowledged_steps_lost",
    label="acknowledged steps lost, real nodes",
    at_most=0.0,
)
NARROW = 4
SILENT_DEADLINE_SECONDS = 2.0


async def silent(preemptions: Preemptions, nodes: int) -> list[float]:
    """How long after its deadline each silent victim's pod was gone."""
    preemption = {"ack_deadline_seconds": SILENT_DEADLINE_SECONDS}
    tasks = [
        await preemptions.submit("silent", 1, priority="low", preemption=preemption)
        for _ in range(nodes)
    ]
    pods = preemptions.pods
    await pods.until_running(nodes, set(tasks), seconds=WAIT_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
    newcomer = await preemptions.submit("newcomer", nodes, priority="high")
    await pods.until_running(nodes, {newcomer}, seconds=WAIT_SECONDS)
    late: list[float] = []
    for task in tasks:
        first = (await preemptions.http.runs(task))[0]
        gone = next(life.gone for life in pods.lives.values() if life.gang == (task, "1"))
        late.append(gone - seconds(first["preemption"]["deadline_at"]))
    await preemptions.stop([*tasks, newcomer])
    await pods.until_gone(seconds=WAIT_SECONDS)
    pods.clear()
    return late


async def bare(
    cluster: Cluster, client: Bare, pods: PodWatch, nodes: int, count: int
) -> list[float]:
    """From the order to delete so many pods until as many others run in their place."""
    names = [named("v") for _ in range(nodes)]
    there = [pod for place, name in enumerate(names) for pod in gang(cluster, name, 1, place)]
    await client.do("create", there)
    await pods.until_running(nodes, seconds=WAIT_SECONDS)
    found: list[float] = []
    for _ in range(count + 1):
        await asyncio.sleep(SETTLE_SECONDS)
        name = named("n")
        newcomers = gang(cluster, name, nodes, 0)
        began = await client.do("delete", there)
        await pods.until_gone(seconds=WAIT_SECONDS)
        await client.do("create", newcomers)
        await pods.until_running(nodes, {name}, seconds=WAIT_SECONDS)
        running = [life.running for life in pods.lives.values() if life.gang[0] == name]
        found.append(max(running) - began)
        there = newcomers
        pods.clear()
    await client.do("delete", there)
    await pods.until_gone(seconds=WAIT_SECONDS)
    pods.clear()
    return found[1:]


async def with_programs(
    preemptions: Preemptions, programs: Programs, nodes: int, count: int
) -> Found:
    """So many rounds with victims that acknowledge."""
    async with programs.playing(), preemptions.victims(nodes) as tasks:
        programs.tasks = set(tasks)
        programs.pods.changed.set()
        listen = partial(programs.all_listen, seconds=WAIT_SECONDS)
        return await preemptions.rounds(tasks, count, listen)


async def simulated(nodes: int, count: int, report: Report, prefix: str) -> None:
    """A cluster of so many nodes: bare, then ours, and the silent ones if there are few."""
    with kubernetes(nodes, gpus=1) as kube:
        path, namespace = kube.kubeconfig, kube.namespace
        async with pods_of(path, namespace) as pods, client_of(path) as api:
            with Bare(kube) as client:
                floor = await bare(kube, client, pods, nodes, count)
            with platform_on(kube, settings={"exit_grace_seconds": 0}) as up:
                up.start()
                http = Http(up.url, up.token)
                await ready_nodes(http, nodes)
                preemptions = Preemptions(http, pods, COMMAND)
                if not prefix:
                    late = await silent(preemptions, nodes)
                    off = max(abs(each) for each in late)
                    report.measured["silent_off_deadline_max_ms"] = round(off * 1000, 2)
                programs = Programs(api, namespace, up.url, pods, set())
                found = await with_programs(preemptions, programs, nodes, count)
                http.close()
    report.floor |= spread(floor, f"{prefix}running")
    report.measured |= found.figures(prefix)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--wide", type=int, default=64)
    parser.add_argument("--wide-rounds", type=int, default=3)
    parser.add_argument("--nodes", type=Path, metavar="KUBECONFIG", help="real nodes, too")
    parser.add_argument("--node-rounds", type=int, default=5)
    parser.add_argument("--host", default="", help="an address of this machine that pods reach")
    parser.add_argument("--registry", default="localhost", help="where the images are")
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{NARROW} and {asked.wide} simulated nodes",
        (*BENCHMARK.goals[: None if asked.wide else -1], *([NODES_GOAL] if asked.nodes else [])),
    )
    try:
        await simulated(NARROW, asked.rounds, report, "")
        if asked.wide:
            await simulated(asked.wide, asked.wide_rounds, report, "wide_")
        if asked.nodes:
            await preempt_on_real_nodes.measure(asked, report)
    except BuildError as problem:
        report.problem = str(problem)
    report.publish()


if __name__ == "__main__":
    run(main)
