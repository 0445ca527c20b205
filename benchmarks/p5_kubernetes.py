"""P5 through Kubernetes: preemption with pods.

    python -m benchmarks.p5_kubernetes [--rounds 10] [--wide 64] [--wide-rounds 3]

On a real control plane with kwok's nodes, each of which holds one victim (a pod of one GPU, the
node's only one). Three parts:

narrow   a gang of high priority over 4 nodes; victims acknowledge as ``kube_programs`` plays them.
         From its submission on: asked, acknowledged, their pods gone, its pods running; it is
         stopped, and the victims' next attempts run.
wide     the same over 64 nodes.
silent   four victims that never answer: how far from its deadline each one's pod is gone.

A simulated program does not leave by itself, so the launcher deletes its pod as soon as it has
acknowledged (``exit_grace_seconds`` 0). Floor: the bare client deletes as many pods and, as soon as
they are gone, creates as many on the same nodes.

With ``--kubeconfig`` also on real nodes: victims are Python programs with the SDK, which leave by
themselves after their acknowledgement; the floor's pods leave as soon as they are asked to. The
gateway then listens on ``--host``, an address of this machine that pods reach.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvloop

from benchmarks.bare_pods import COMMAND, Bare, gang, named
from benchmarks.kube_programs import Programs
from benchmarks.kube_stage import NAMESPACE, Kube, kubernetes, platform_on
from benchmarks.pod_watch import PodWatch, cluster, pods_of
from benchmarks.report import Report, spread
from benchmarks.stage import BenchmarkError, Http, now_s, ready_nodes, seconds

NARROW = 4
SETTLE_SECONDS = 0.5
WAIT_SECONDS = 120.0
SILENT_DEADLINE_SECONDS = 2.0
_numbers = itertools.count()


@dataclass
class Found:
    """Seconds, by what they are between."""

    running: list[float] = field(default_factory=list)
    requested_acked: list[float] = field(default_factory=list)
    acked_gone: list[float] = field(default_factory=list)
    gone_running: list[float] = field(default_factory=list)
    ended_resumed: list[float] = field(default_factory=list)
    cycles_per_s: list[float] = field(default_factory=list)
    replaced: list[float] = field(default_factory=list)
    lost_steps: int = 0
    preemptions: int = 0


async def submit(http: Http, name: str, nodes: int, **more: object) -> str:
    """A gang of one GPU on each of so many nodes."""
    number = next(_numbers)
    return await http.submit(
        name=f"{name}-{number}", nodes=nodes, gpus_per_node=1, command=list(COMMAND), **more
    )


async def stop(http: Http, tasks: Sequence[str]) -> None:
    """End tasks and wait until they have."""
    for task in tasks:
        status, found = await http.call("PUT", f"/v1/tasks/{task}/goal", {"goal": "stop"})
        if status >= 300:
            raise BenchmarkError(f"stop {task}: {status} {found}")
    await http.until(tasks, seconds=WAIT_SECONDS)


@asynccontextmanager
async def victims(http: Http, programs: Programs, count: int) -> AsyncGenerator[list[str]]:
    """So many tasks that run and listen, each with its program."""
    tasks = [await submit(http, "victim", 1, priority="low") for _ in range(count)]
    programs.tasks = set(tasks)
    following = asyncio.ensure_future(programs.follow())
    try:
        yield tasks
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await stop(http, tasks)


async def listening(programs: Programs, count: int) -> None:
    """Wait until so many programs are there and ask what is wanted of them."""
    ends_at = now_s() + WAIT_SECONDS
    while len(programs.listening) < count:
        if now_s() > ends_at:
            raise BenchmarkError(f"{len(programs.listening)} of {count} victims run")
        await asyncio.sleep(0.01)


async def one_round(http: Http, programs: Programs, tasks: Sequence[str]) -> Found:
    """One newcomer takes all nodes, and gives them back."""
    found, pods = Found(), programs.pods
    await listening(programs, len(tasks))
    await asyncio.sleep(SETTLE_SECONDS)
    before = {run[0]: run for run in programs.listening}
    began = now_s()
    newcomer = await submit(http, "newcomer", len(tasks), priority="high")
    await pods.until_running(len(tasks), {newcomer}, seconds=WAIT_SECONDS)
    lives = list(pods.lives.values())
    running = max(life.running for life in lives if life.gang[0] == newcomer)
    gone = {life.gang: life.gone for life in lives if life.gone}
    found.running.append(running - began)
    for task, run in before.items():
        shown = next(each for each in await http.runs(task) if each["attempt"] == run[1])
        requested_at = seconds(shown["preemption"]["requested_at"])
        found.requested_acked.append(programs.acked[run] - requested_at)
        found.acked_gone.append(gone[task, str(run[1])] - programs.acked[run])
    found.gone_running.append(running - max(gone[task, str(no)] for task, no in before.values()))
    await stop(http, [newcomer])
    await pods.until_running(len(tasks), set(tasks), seconds=WAIT_SECONDS)
    lives = list(pods.lives.values())
    ended = max(life.gone for life in lives if life.gang[0] == newcomer)
    resumed = [life.running for life in lives if life.gang[0] in before and not life.gone]
    found.ended_resumed += [at - ended for at in resumed]
    found.cycles_per_s.append(len(tasks) / (running - began + max(resumed) - ended))
    found.preemptions += len(tasks)
    pods.clear()
    return found


async def rounds(http: Http, programs: Programs, nodes: int, count: int) -> Found:
    """So many rounds; one before them warms connections and statements up."""
    total = Found()
    async with victims(http, programs, nodes) as tasks:
        for number in range(count + 1):
            one = await one_round(http, programs, tasks)
            if number:
                for name, values in vars(one).items():
                    setattr(total, name, getattr(total, name) + values)
        await listening(programs, nodes)
    await programs.pods.until_gone(seconds=WAIT_SECONDS)
    total.lost_steps = programs.lost_steps()
    return total


async def silent(http: Http, pods: PodWatch, nodes: int) -> list[float]:
    """How long after its deadline each silent victim's pod was gone."""
    patience = {"ack_deadline_seconds": SILENT_DEADLINE_SECONDS}
    tasks = [
        await submit(http, "silent", 1, priority="low", preemption=patience) for _ in range(nodes)
    ]
    await pods.until_running(nodes, set(tasks), seconds=WAIT_SECONDS)
    await asyncio.sleep(SETTLE_SECONDS)
    newcomer = await submit(http, "newcomer", nodes, priority="high")
    await pods.until_running(nodes, {newcomer}, seconds=WAIT_SECONDS)
    late: list[float] = []
    for task in tasks:
        first = (await http.runs(task))[0]
        gone = next(life.gone for life in pods.lives.values() if life.gang == (task, "1"))
        late.append(gone - seconds(first["preemption"]["deadline_at"]))
    await stop(http, [*tasks, newcomer])
    await pods.until_gone(seconds=WAIT_SECONDS)
    pods.clear()
    return late


async def bare(kube: Kube, client: Bare, pods: PodWatch, nodes: int, count: int) -> list[float]:
    """From the order to delete so many pods until as many others run in their place."""
    names = [named("v") for _ in range(nodes)]
    there = [pod for place, name in enumerate(names) for pod in gang(kube, name, 1, place)]
    await client.do("create", there)
    await pods.until_running(nodes, seconds=WAIT_SECONDS)
    found: list[float] = []
    for _ in range(count + 1):
        await asyncio.sleep(SETTLE_SECONDS)
        name = named("n")
        newcomers = gang(kube, name, nodes, 0)
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


async def simulated(nodes: int, count: int, report: Report, name: str) -> None:
    """A cluster of so many nodes: bare, then ours, and the silent ones if there are few."""
    prefix = f"{name}_" if name else ""
    with kubernetes(nodes, gpus=1) as kube:
        path = kube.plane.kubeconfig
        async with pods_of(path, NAMESPACE) as pods, cluster(path) as api:
            with Bare(kube) as client:
                floor = await bare(kube, client, pods, nodes, count)
            with platform_on(kube, settings={"exit_grace_seconds": 0}) as up:
                up.start()
                http = Http(up.url, up.token)
                await ready_nodes(http, nodes)
                if not prefix:
                    late = await silent(http, pods, nodes)
                    report.measured["silent_off_deadline_max_ms"] = round(
                        max(abs(each) for each in late) * 1000, 2
                    )
                found = await rounds(http, Programs(api, up.url, pods, set()), nodes, count)
                http.close()
    report.floor |= spread(floor, f"{prefix}running")
    measured = report.measured
    measured |= spread(found.running, f"{prefix}running")
    measured |= spread(found.requested_acked, f"{prefix}requested_to_acked")
    measured |= spread(found.acked_gone, f"{prefix}acked_to_gone")
    measured |= spread(found.gone_running, f"{prefix}gone_to_running")
    measured |= spread(found.ended_resumed, f"{prefix}ended_to_victim_running")
    measured[f"{prefix}cycles_per_s"] = round(max(found.cycles_per_s), 1)
    measured[f"{prefix}acknowledged_steps_lost"] = found.lost_steps
    measured[f"{prefix}preemptions"] = found.preemptions


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--wide", type=int, default=64)
    parser.add_argument("--wide-rounds", type=int, default=3)
    asked = parser.parse_args()
    report = Report(
        "p5_kubernetes",
        f"preemption with pods, {NARROW} and {asked.wide} simulated nodes",
        at_most={
            "silent_off_deadline_max_ms": 200.0,
            "acknowledged_steps_lost": 0.0,
            "wide_acknowledged_steps_lost": 0.0,
        },
    )
    await simulated(NARROW, asked.rounds, report, "")
    if asked.wide:
        await simulated(asked.wide, asked.wide_rounds, report, "wide")
    report.publish()


if __name__ == "__main__":
    uvloop.run(main())
