"""Small drivers for whole-node jobs on one pool, written for reading, slow on purpose: what the
hand-worked schedules are checked with, and something honest for the lab's outside to run.

Whenever anything changes, a policy chooses the live jobs that run now; a job that ran and is not
among them is preempted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from services.scheduler.lab.record import Ending, RunRecord, begin
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Job, Workload

ALMOST = 1e-6
SLICE = 3600.0
SERVED = 10 * 3600.0


@dataclass(eq=False)
class Live:
    job: Job
    attained: float = 0.0
    since: float | None = None
    restart: float = 0.0
    starts: int = 0
    # Where it stands in the line of a rotation.
    place: tuple[float, ...] = ()

    def worked(self, now: float) -> float:
        running = 0.0 if self.since is None else max(0.0, now - self.since - self.restart)
        return self.attained + running

    def left(self, now: float) -> float:
        return self.job.duration_s - self.worked(now)

    def ends_at(self, now: float) -> float:
        pending = 0.0 if self.since is None else max(0.0, self.since + self.restart - now)
        return now + pending + self.left(now)


def drive(
    workload: Workload, policy: str, options: Options, progress: Callable[[int], None]
) -> RunRecord:
    record = begin(workload, policy, progress)
    choose, changes_at = POLICIES[policy]
    live: list[Live] = []
    arrivals = list(reversed(workload.jobs))
    now = 0.0
    while arrivals or live:
        times = [arrivals[-1].submit_s] if arrivals else []
        times += [each.ends_at(now) for each in live if each.since is not None]
        times += [at for each in live if (at := changes_at(each, now)) > now + ALMOST]
        now = min(times)
        for each in [e for e in live if e.since is not None and e.left(now) <= ALMOST]:
            assert each.since is not None
            record.stretch(
                each.job.number, each.since, now, Ending.FINISHED, restart_s=each.restart
            )
            live.remove(each)
        while arrivals and arrivals[-1].submit_s <= now + ALMOST:
            job = arrivals.pop()
            live.append(Live(job, place=(job.submit_s, 0.0, job.number)))
        record.events += 1
        _follow(choose(live, now, workload.nodes), live, now, record, options)
    return record


def _follow(
    chosen: list[Live], live: list[Live], now: float, record: RunRecord, options: Options
) -> None:
    for each in live:
        if each.since is not None and each not in chosen:
            restart = min(each.restart, now - each.since)
            record.stretch(each.job.number, each.since, now, Ending.PREEMPTED, restart_s=restart)
            each.attained, each.since = each.worked(now), None
    for each in chosen:
        if each.since is None:
            each.restart = options.restart_cost_s if each.starts else 0.0
            each.since, each.starts = now, each.starts + 1


def _fill(ordered: list[Live], free_nodes: int, *, strict: bool = False) -> list[Live]:
    chosen: list[Live] = []
    for each in ordered:
        if each.job.nodes <= free_nodes:
            chosen.append(each)
            free_nodes -= each.job.nodes
        elif strict:
            break
    return chosen


def _running_first(live: list[Live]) -> list[Live]:
    return sorted(live, key=lambda each: (each.since is None, each.job.number))


def fifo(live: list[Live], now: float, nodes: int) -> list[Live]:
    return _fill(_running_first(live), nodes, strict=True)


def backfill(live: list[Live], now: float, nodes: int) -> list[Live]:
    return _fill(_running_first(live), nodes)


def easy(live: list[Live], now: float, nodes: int) -> list[Live]:
    chosen = fifo(live, now, nodes)
    waiting = [each for each in _running_first(live) if each not in chosen]
    if not waiting:
        return chosen
    free = nodes - sum(each.job.nodes for each in chosen)
    head, at, then = waiting[0], now, free
    for each in sorted(chosen, key=lambda each: each.ends_at(now)):
        if then >= head.job.nodes and each.ends_at(now) > at + ALMOST:
            break
        at, then = each.ends_at(now), then + each.job.nodes
    spare = then - head.job.nodes
    for each in waiting[1:]:
        in_time = now + each.left(now) <= at + ALMOST
        if each.job.nodes <= free and (in_time or each.job.nodes <= spare):
            chosen.append(each)
            free -= each.job.nodes
            spare -= 0 if in_time else each.job.nodes
    return chosen


def las(live: list[Live], now: float, nodes: int) -> list[Live]:
    def queue(each: Live) -> tuple[bool, int]:
        return (each.worked(now) * each.job.nodes >= SERVED - ALMOST, each.job.number)

    return _fill(sorted(live, key=queue), nodes)


def _served_at(each: Live, now: float) -> float:
    if each.since is None or each.worked(now) * each.job.nodes >= SERVED - ALMOST:
        return math.inf
    return each.since + each.restart + SERVED / each.job.nodes - each.attained


def srpt(live: list[Live], now: float, nodes: int) -> list[Live]:
    return _fill(sorted(live, key=lambda e: (round(e.left(now), 3), e.job.number)), nodes)


def rotation(live: list[Live], now: float, nodes: int) -> list[Live]:
    ran = sorted((e for e in live if e.since is not None), key=lambda each: each.place)
    for order, each in enumerate(ran):
        assert each.since is not None
        if _slice_ends_at(each, now) <= now + ALMOST:
            each.place = (now, 1.0, order)
    due = [each for each in ran if each.place[:2] == (now, 1.0)]
    kept = [each for each in ran if each not in due]
    others = sorted((e for e in live if e not in kept), key=lambda each: each.place)
    return kept + _fill(others, nodes - sum(each.job.nodes for each in kept))


def _slice_ends_at(each: Live, now: float) -> float:
    if each.since is None:
        return math.inf
    turns = math.floor((now - each.since) / SLICE + ALMOST)
    ended = each.since + turns * SLICE
    if turns and now - ended <= ALMOST and each.place[:2] != (now, 1.0):
        return ended
    return ended + SLICE


def never(each: Live, now: float) -> float:
    return math.inf


POLICIES = {
    "fifo": (fifo, never),
    "backfill": (backfill, never),
    "easy": (easy, never),
    "las": (las, _served_at),
    "srpt": (srpt, never),
    "rotation": (rotation, _slice_ends_at),
}
