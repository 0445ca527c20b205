"""Rounds of preemption with pods, as both parts of ``preempt_to_newcomer_pods`` play them:
victims hold every GPU, a gang of high priority takes all of them and gives them back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import BenchmarkError, Http, now_s, seconds
from benchmarks.pod_watch import PodWatch
from benchmarks.report import Number, spread

SETTLE_SECONDS = 0.5
WAIT_SECONDS = 120.0
_numbers = itertools.count()


@dataclass
class Found:
    """Seconds between the steps of a preemption."""

    running: list[float] = field(default_factory=list)
    requested_acked: list[float] = field(default_factory=list)
    acked_gone: list[float] = field(default_factory=list)
    gone_running: list[float] = field(default_factory=list)
    ended_resumed: list[float] = field(default_factory=list)
    cycles_per_s: list[float] = field(default_factory=list)
    lost_steps: int = 0
    preemptions: int = 0

    def add(self, other: Found) -> None:
        """Add the figures of another round."""
        for name, values in vars(other).items():
            setattr(self, name, getattr(self, name) + values)

    def figures(self, prefix: str) -> dict[str, Number]:
        """The figures for the report."""
        return {
            **spread(self.running, f"{prefix}running"),
            **spread(self.requested_acked, f"{prefix}requested_to_acked"),
            **spread(self.acked_gone, f"{prefix}acked_to_gone"),
            **spread(self.gone_running, f"{prefix}gone_to_running"),
            **spread(self.ended_resumed, f"{prefix}ended_to_victim_running"),
            f"{prefix}cycles_per_s": round(max(self.cycles_per_s), 1),
            f"{prefix}acknowledged_steps_lost": self.lost_steps,
            f"{prefix}preemptions": self.preemptions,
        }


@dataclass
class Preemptions:
    """One platform, and the pods of its cluster. Each pod asks for ``gpus``, all of a node."""

    http: Http
    pods: PodWatch
    # What victims run, and what newcomers do.
    victim: Sequence[str]
    newcomer: Sequence[str] = ("/bin/sleep", "86400")
    gpus: int = 1

    async def submit(self, name: str, nodes: int, **more: object) -> str:
        """A gang over so many whole nodes."""
        newcomer = name == "newcomer"
        # It saves nothing, so that its stop is one at once.
        at_once = {"preemption": {"mode": "kill"}} if newcomer else {}
        return await self.http.submit(
            name=f"{name}-{next(_numbers)}",
            nodes=nodes,
            gpus_per_node=self.gpus,
            command=list(self.newcomer if newcomer else self.victim),
            **at_once,
            **more,
        )

    async def stop(self, tasks: Sequence[str]) -> None:
        """End tasks and wait until they have."""
        for task in tasks:
            path, body = f"/v1/tasks/{task}/goal", {"goal": "stop"}
            status, found = await self.http.call("PUT", path, body)
            if status >= 300:
                raise BenchmarkError(f"stop {task}: {status} {found}")
        await self.http.until(tasks, seconds=WAIT_SECONDS)

    @asynccontextmanager
    async def victims(self, count: int) -> AsyncGenerator[list[str]]:
        """So many tasks of one node each, which are stopped at the end."""
        tasks = [await self.submit("victim", 1, priority="low") for _ in range(count)]
        try:
            yield tasks
        finally:
            await self.stop(tasks)
            self.pods.clear()

    async def rounds(
        self, tasks: Sequence[str], count: int, ready: Callable[[], Awaitable[None]]
    ) -> Found:
        """So many rounds, each begun once the victims are ``ready``; one before them warms
        connections and statements up."""
        total = Found()
        for number in range(count + 1):
            await self.pods.until_running(len(tasks), set(tasks), seconds=WAIT_SECONDS)
            await ready()
            await asyncio.sleep(SETTLE_SECONDS)
            one = await self._round(tasks)
            if number:
                total.add(one)
        return total

    async def _round(self, tasks: Sequence[str]) -> Found:
        """One newcomer takes all nodes, and gives them back."""
        found, pods = Found(), self.pods
        began = now_s()
        newcomer = await self.submit("newcomer", len(tasks), priority="high")
        await pods.until_running(len(tasks), {newcomer}, seconds=WAIT_SECONDS)
        lives = list(pods.lives.values())
        running = max(life.running for life in lives if life.gang[0] == newcomer)
        over = {life.gang: life.over for life in lives}
        found.running.append(running - began)
        left: list[float] = []
        saved: dict[str, int] = {}
        for task in tasks:
            run = await self._preempted(task)
            requested_at = seconds(run["preemption"]["requested_at"])
            acked_at = seconds(run["checkpoint"]["saved_at"])
            left.append(over[task, str(run["attempt"])])
            saved[task] = run["checkpoint"]["step"]
            found.requested_acked.append(acked_at - requested_at)
            found.acked_gone.append(left[-1] - acked_at)
        found.gone_running.append(running - max(left))
        await self.stop([newcomer])
        await pods.until_running(len(tasks), set(tasks), seconds=WAIT_SECONDS)
        lives = list(pods.lives.values())
        ended = max(life.over for life in lives if life.gang[0] == newcomer)
        resumed = [life.running for life in lives if life.gang[0] in saved and not life.over]
        found.ended_resumed += [at - ended for at in resumed]
        found.cycles_per_s.append(len(tasks) / (running - began + max(resumed) - ended))
        found.preemptions += len(tasks)
        for task, step in saved.items():
            newest = max(await self.http.runs(task), key=lambda run: run["attempt"])
            found.lost_steps += max(0, step - (newest["resume_from"] or {"step": 0})["step"])
        pods.clear()
        return found

    async def _preempted(self, task: str) -> dict[str, Any]:
        """The task's last run that was asked to leave, once its end is published."""
        ends_at = now_s() + WAIT_SECONDS
        while now_s() < ends_at:
            runs = [run for run in await self.http.runs(task) if run["preemption"]]
            if runs:
                run = max(runs, key=lambda run: run["attempt"])
                if run["checkpoint"] and run["exit"]:
                    return run
            await asyncio.sleep(0.05)
        raise BenchmarkError(f"{task} was not asked to go, or has not answered")
