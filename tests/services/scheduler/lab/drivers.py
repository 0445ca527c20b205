"""Small drivers for whole-node jobs on one pool, written for reading: an oracle for hand-worked
schedules, and something for the lab's outside to run. They know durations and nothing else.

A policy here is an order of all live jobs and whether those that run may be sent away for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from services.scheduler.lab.options import Options
from services.scheduler.lab.record import Ending, RunRecord, begin
from services.scheduler.lab.workload import Job, Workload


@dataclass
class Live:
    job: Job
    left: float
    since: float | None = None
    overhead: float = 0.0
    started: int = 0

    def ends(self) -> float:
        assert self.since is not None
        return self.since + self.overhead + self.left


def drive(
    workload: Workload, policy: str, options: Options, progress: Callable[[int], None]
) -> RunRecord:
    record = begin(workload, policy, progress)
    waiting: list[Live] = []
    running: list[Live] = []
    arrivals = list(workload.jobs)
    free = workload.nodes
    now = 0.0
    while arrivals or waiting or running:
        now = min(
            [job.submit_s for job in arrivals[:1]] + [live.ends() for live in running],
            default=math.inf,
        )
        for live in [live for live in running if live.ends() <= now]:
            record.stretch(
                live.job.number, live.since or 0.0, now, Ending.FINISHED, restart_s=live.overhead
            )
            running.remove(live)
            free += live.job.nodes
        while arrivals and arrivals[0].submit_s <= now:
            job = arrivals.pop(0)
            waiting.append(Live(job, job.duration_s))
        record.events += 1
        if policy == "srpt":
            free += _send_away(record, running, waiting, now, workload.nodes)
            waiting.sort(key=lambda live: (live.left, live.job.number))
        for live in _startable(policy, waiting, free):
            waiting.remove(live)
            live.since, live.started = now, live.started + 1
            live.overhead = options.restart_cost_s if live.started > 1 else 0.0
            running.append(live)
            free -= live.job.nodes
    return record


def _startable(policy: str, waiting: list[Live], free: int) -> list[Live]:
    found: list[Live] = []
    for live in waiting:
        if live.job.nodes <= free:
            found.append(live)
            free -= live.job.nodes
        elif policy == "fifo":
            break
    return found


def _send_away(
    record: RunRecord, running: list[Live], waiting: list[Live], now: float, nodes: int
) -> int:
    """Shortest remaining first: what does not fit among the shortest is sent away."""

    def remaining(live: Live) -> float:
        if live.since is None:
            return live.left
        return live.left - max(0.0, now - live.since - live.overhead)

    room = nodes
    kept: set[int] = set()
    for live in sorted([*running, *waiting], key=lambda live: (remaining(live), live.job.number)):
        if live.job.nodes <= room:
            room -= live.job.nodes
            kept.add(live.job.number)
    freed = 0
    for live in [live for live in running if live.job.number not in kept]:
        assert live.since is not None
        record.stretch(
            live.job.number,
            live.since,
            now,
            Ending.PREEMPTED,
            restart_s=min(live.overhead, now - live.since),
        )
        live.left = remaining(live)
        live.since = None
        running.remove(live)
        waiting.append(live)
        freed += live.job.nodes
    return freed
