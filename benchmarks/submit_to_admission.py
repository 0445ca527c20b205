"""Kueue's public generators through the whole durable stack, on nodes that are not there.

    python -m benchmarks.submit_to_admission --trace kueue_baseline_15000.csv.gz [--workloads 1000]

The trace (columns ``submit_time_s, duration_s, units, cohort, cluster_queue, priority, cls``) is
submitted in an open loop: what is due goes, queue by queue, as one batch over the HTTP gateway,
each queue by its own user and team, whether or not earlier workloads have run.
A cohort is a node group with as many one-GPU nodes as its queues may use; a workload of so many
units is a gang of so many nodes. Everything is stored and published as always; only the runs
themselves are timers. The floor is what any policy needs: the work divided by the nodes, and the
time of the last submission with its run.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.fake_nodes import DURATION
from benchmarks.guard import run
from benchmarks.harness import (
    BenchmarkError,
    Http,
    Platform,
    database_of,
    now_s,
    parts,
    ready_nodes,
    running_platform,
    up_on_fake_nodes,
)
from benchmarks.report import Benchmark, Goal, Report, percentile

BENCHMARK = Benchmark(
    name="submit_to_admission",
    alias="p2",
    question="How soon is a queue of short workloads admitted, and how well are its quotas used?",
    method=(
        "15,000 workloads of Kueue's public generator (5 cohorts of 6 queues of 20 units), in an"
        " open loop through the gateway, the services and the database, onto nodes that only keep"
        " time. Goals for admission are half of Kueue's own record. Floor: the work divided by the"
        " nodes, or the last submission with its run."
    ),
    goals=(
        Goal(figure="wall_s", label="all workloads", at_most=80.0),
        Goal(figure="use_percent", label="quota use", at_least=85.0),
        Goal(figure="admission_large_mean_s", label="admission of large ones, mean", at_most=8.25),
        Goal(
            figure="admission_medium_mean_s", label="admission of medium ones, mean", at_most=38.5
        ),
        Goal(figure="admission_small_mean_s", label="admission of small ones, mean", at_most=107.5),
    ),
    smoke=("--generate", "1x2", "--apart", "scheduler+launcher"),
    variables={"TRACE": "--trace"},
)
# A queue of Kueue's generator: class -> (units, seconds, one every so many seconds, priority,
# how many).
CLASSES = {
    "small": (1, 0.15, 0.06, "50", 35),
    "medium": (5, 0.35, 0.3, "100", 11),
    "large": (20, 0.7, 0.7, "200", 4),
}
QUEUE_UNITS = 20
LEVELS = {"50": "low", "100": "normal", "200": "high"}
LOOK_SECONDS = 0.25
AGAIN_SECONDS = 0.5
BATCH_MAX = 500
# Every submitted workload with its run, by the read model; columns in the order of ``Life``.
LIVES = """
SELECT t.name, t.state, t.submitted_at, r.assigned_at, r.started_at,
       (r.exit->>'exited_at')::timestamptz
FROM gateway.task t LEFT JOIN gateway.run r ON r.task_id = t.task_id AND r.attempt = t.attempt
WHERE t.submitted_at IS NOT NULL
"""
PREEMPTED = "SELECT count(*) FROM gateway.run WHERE preempt_requested_at IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the trace, with its place in it."""

    name: str
    submit_s: float
    duration_s: float
    units: int
    cohort: str
    queue: str
    level: str
    kind: str


@dataclass(frozen=True, slots=True)
class Life:
    """The times of a workload, in seconds since 1970."""

    state: str
    submitted: float
    assigned: float
    started: float
    exited: float


def read(trace: Path, count: int) -> list[Workload]:
    """The first so many workloads (0: all), in the order of their submission."""
    with gzip.open(trace, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        Workload(
            name=f"w{number}",
            submit_s=float(row["submit_time_s"]),
            duration_s=float(row["duration_s"]),
            units=int(row["units"]),
            cohort=row["cohort"],
            queue=row["cluster_queue"],
            level=LEVELS[row["priority"]],
            kind=row["cls"],
        )
        for number, row in enumerate(rows[: count or None])
    ]


def generated(shape: str) -> list[Workload]:
    """The generator's workloads for ``COHORTSxQUEUES``; ``10x100`` is its set of 50,000."""
    cohorts, queues = (int(part) for part in shape.split("x"))
    found = [
        Workload("", every * number, seconds, units, f"cohort{cohort}", queue, LEVELS[level], kind)
        for cohort in range(cohorts)
        for queue in (f"cohort{cohort}-queue{each}" for each in range(queues))
        for kind, (units, seconds, every, level, count) in CLASSES.items()
        for number in range(count)
    ]
    found.sort(key=lambda workload: workload.submit_s)
    return [replace(workload, name=f"w{number}") for number, workload in enumerate(found)]


def groups_of(workloads: Sequence[Workload]) -> dict[str, int]:
    """Each cohort with its nodes: the quota of all its queues."""
    queues: dict[str, set[str]] = defaultdict(set)
    for workload in workloads:
        queues[workload.cohort].add(workload.queue)
    return {cohort: QUEUE_UNITS * len(found) for cohort, found in sorted(queues.items())}


async def people(http: Http, queues: Sequence[str], url: str) -> dict[str, Http]:
    """A team and a user of each queue's name, with the user's own connections."""
    found: dict[str, Http] = {}
    for queue in queues:
        await _made(http, "/v1/teams", name=queue)
        await _made(http, "/v1/users", name=queue, team=queue)
        token = (await _made(http, "/v1/tokens", user=queue))["token"]
        found[queue] = Http(url, token)
    return found


async def share(http: Http, workloads: Sequence[Workload], policy: str, protected_s: float) -> None:
    """Kueue's cohorts as policies: each queue is guaranteed its nodes in its cohort's group, and
    what it leaves idle is lent to the others."""
    queues: dict[str, set[str]] = defaultdict(set)
    for each in workloads:
        queues[each.cohort].add(each.queue)
    groups = {
        cohort: {
            "policy": policy,
            "protected": protected_s,
            "virtual_clusters": [
                {"name": queue, "nodes": QUEUE_UNITS, "teams": [queue]} for queue in sorted(found)
            ],
        }
        for cohort, found in queues.items()
    }
    status, answer = await http.call("PUT", "/v1/policies", {"groups": groups})
    if status != 200:
        raise BenchmarkError(f"PUT /v1/policies: {status} {answer}")


async def _made(http: Http, path: str, **fields: str) -> Any:  # noqa: ANN401 - any JSON
    status, found = await http.call("POST", path, fields)
    if status != 201:
        raise BenchmarkError(f"POST {path}: {status} {found}")
    return found


@dataclass
class Load:
    """The open loop. Each queue has one sender: what comes due while it waits for an answer goes
    with its next batch, so that a platform that is behind gets larger batches and not more."""

    users: dict[str, Http]
    step_s: float
    # By workload: when it was due; by batch: how late it was sent and how long its answer took.
    due: dict[str, float]
    late: list[float]
    answered: list[float]
    # Workloads that were sent again, because the platform asked for that or did not answer.
    again: int = 0

    async def run(self, workloads: Sequence[Workload]) -> None:
        """Submit everything."""
        queues: dict[str, list[Workload]] = defaultdict(list)
        begin = now_s() + 0.5 - workloads[0].submit_s
        for each in workloads:
            queues[each.queue].append(each)
            self.due[each.name] = begin + each.submit_s
        async with asyncio.TaskGroup() as group:
            for queue, found in queues.items():
                group.create_task(self._send(queue, found, begin))

    async def _send(self, queue: str, workloads: Sequence[Workload], begin: float) -> None:
        sent = 0
        while sent < len(workloads):
            # A step is sent at its end, when all of it is due.
            at = begin + (int(workloads[sent].submit_s / self.step_s) + 1) * self.step_s
            await asyncio.sleep(max(0.0, at - now_s()))
            until = max(at, now_s())
            batch = [
                each for each in workloads[sent : sent + BATCH_MAX] if self.due[each.name] <= until
            ]
            await self._submit(queue, batch, at)
            sent += len(batch)

    async def _submit(self, queue: str, batch: Sequence[Workload], at: float) -> None:
        sent = now_s()
        self.late.append(sent - at)
        while batch:
            try:
                status, found = await self.users[queue].call(
                    "POST", "/v1/tasks:batch", {"tasks": [_body(each) for each in batch]}
                )
            except TimeoutError:
                status, found = 503, dict[str, Any]()
            if status not in (200, 503):
                raise BenchmarkError(f"{queue}: {status} {found}")
            # As any client does, with the same keys: nothing is made twice.
            if status == 200:
                items: list[dict[str, Any]] = found["items"]
                if bad := [item for item in items if item["status"] not in (200, 201, 503)]:
                    raise BenchmarkError(f"{queue}: {bad[0]}")
                batch = [
                    each for each, item in zip(batch, items, strict=True) if item["status"] == 503
                ]
            if batch:
                self.again += len(batch)
                await asyncio.sleep(AGAIN_SECONDS)
        self.answered.append(now_s() - sent)


def _body(workload: Workload) -> dict[str, object]:
    return {
        "name": workload.name,
        "group": workload.cohort,
        "priority": workload.level,
        "nodes": workload.units,
        "gpus_per_node": 1,
        "command": ["/bin/true"],
        "env": {DURATION: str(workload.duration_s)},
        "idempotency_key": workload.name,
    }


async def until_ended(http: Http, *, seconds: float, began: float) -> float:
    """Wait until no task is left that has not ended; returns when that was seen."""
    while True:
        left = (await http.get("/v1/tasks?all=false&limit=1"))["items"]
        if not left:
            return now_s()
        if now_s() - began > seconds:
            raise BenchmarkError(f"after {seconds:g} s not all have ended: {left[0]}")
        await asyncio.sleep(LOOK_SECONDS)


async def lives(platform: Platform) -> tuple[dict[str, Life], int]:
    """Every workload's times in the read model, and how many runs were preempted."""
    async with database_of(platform) as database:
        rows: list[tuple[str, str, *tuple[datetime | None, ...]]] = await database.fetch(LIVES)
        found = {name: Life(state, *map(_seconds, times)) for name, state, *times in rows}
        return found, int(await database.fetchval(PREEMPTED))


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else float("nan")


@dataclass(frozen=True)
class Outcome:
    """One run of the trace through a platform."""

    load: Load
    lives: dict[str, Life]
    seen_ended: float
    preempted: int
    cpu_s: dict[str, float]
    pss_mib: dict[str, float]


async def measured(
    platform: Platform, workloads: list[Workload], groups: dict[str, int], asked: argparse.Namespace
) -> Outcome:
    """Submit the trace, wait for its end, read what happened."""
    http = Http(platform.url, platform.token)
    users: dict[str, Http] = {}
    try:
        await ready_nodes(http, sum(groups.values()))
        users = await people(http, sorted({each.queue for each in workloads}), platform.url)
        if asked.policy:
            await share(http, workloads, asked.policy, asked.protected)
        load = Load(users, asked.step, {}, [], [])
        before, began = _cpu_seconds(platform), now_s()
        await load.run(workloads)
        seen = await until_ended(http, seconds=60 + 3 * workloads[-1].submit_s + 600, began=began)
        used, memory = parts(before, _cpu_seconds(platform)), platform.pss_mib()
        found, preempted = await lives(platform)
        return Outcome(load, found, seen, preempted, used, memory)
    finally:
        http.close()
        for each in users.values():
            each.close()


def _cpu_seconds(platform: Platform) -> dict[str, float]:
    """The platform's processes and this one, which makes the load."""
    return {**platform.cpu_seconds(), "load": time.process_time()}


def fill_in(
    report: Report, workloads: Sequence[Workload], outcome: Outcome, groups: dict[str, int]
) -> None:
    """Compute the figures and add them to the report."""
    due, lives = outcome.load.due, outcome.lives
    bad = [each.name for each in workloads if lives[each.name].state != "succeeded"]
    if bad:
        raise BenchmarkError(f"{len(bad)} workloads did not succeed, such as {bad[0]}")
    units, begin = sum(groups.values()), min(due.values())
    wall = max(lives[each.name].exited for each in workloads) - begin
    work = sum(each.units * each.duration_s for each in workloads)
    held = sum(
        each.units * (lives[each.name].exited - lives[each.name].assigned) for each in workloads
    )
    measured = report.measured
    measured["wall_s"] = round(wall, 2)
    measured["seen_ended_s"] = round(outcome.seen_ended - begin, 2)
    measured["workloads_per_s"] = round(len(workloads) / wall, 1)
    measured["use_percent"] = round(100 * work / (units * wall), 1)
    measured["held_percent"] = round(100 * held / (units * wall), 1)
    for kind in ("small", "medium", "large"):
        of_kind = [each for each in workloads if each.kind == kind]
        waits = [lives[each.name].assigned - due[each.name] for each in of_kind]
        if waits:
            measured[f"admission_{kind}_mean_s"] = round(statistics.mean(waits), 3)
            measured[f"admission_{kind}_p99_s"] = round(percentile(waits, 0.99), 3)
        around = [
            lives[each.name].exited - lives[each.name].assigned - each.duration_s
            for each in of_kind
        ]
        if around:
            measured[f"start_and_end_{kind}_mean_ms"] = round(1000 * statistics.mean(around), 1)
    measured["batch_answered_p50_ms"] = round(1000 * percentile(outcome.load.answered, 0.5), 1)
    measured["batch_answered_p99_ms"] = round(1000 * percentile(outcome.load.answered, 0.99), 1)
    measured["batch_sent_late_p99_ms"] = round(1000 * percentile(outcome.load.late, 0.99), 1)
    measured["preempted_runs"] = outcome.preempted
    measured["sent_again"] = outcome.load.again
    for kind, used in sorted(outcome.cpu_s.items()):
        measured[f"cpu_{kind}_s"] = round(used, 1)
        measured[f"cpu_{kind}_ms_each"] = round(1000 * used / len(workloads), 2)
    for kind, size in sorted(outcome.pss_mib.items()):
        measured[f"pss_{kind}_mib"] = round(size)
    report.floor["work_over_nodes_s"] = round(work / units, 2)
    ends = [each.submit_s + each.duration_s for each in workloads]
    report.floor["wall_s"] = round(max(work / units, max(ends) - workloads[0].submit_s), 2)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="the trace's file (.csv.gz)")
    parser.add_argument(
        "--generate", metavar="COHORTSxQUEUES", help="Kueue's generator instead of a trace"
    )
    parser.add_argument("--workloads", type=int, default=0, help="only the first so many")
    parser.add_argument(
        "--apart",
        default="scheduler+launcher",
        help="services of further processes: names with + in one process, commas between them",
    )
    parser.add_argument(
        "--policy",
        default="timeshare",
        help="policy of the cohorts' groups, with a guarantee for each queue; empty: neither",
    )
    parser.add_argument(
        "--protected", type=float, default=0.0, help="seconds before a run may be preempted"
    )
    parser.add_argument("--step", type=float, default=0.5, help="seconds of one batch")
    asked = parser.parse_args()
    whole = asked.trace is not None and not asked.workloads
    report = Report(
        BENCHMARK,
        f"{asked.workloads or 'all'} workloads of {getattr(asked.trace, 'name', asked.generate)}",
        BENCHMARK.goals if whole else (),
    )
    if asked.trace is None and asked.generate is None:
        report.problem = "no workloads: write TRACE=FILE, or --generate COHORTSxQUEUES"
    else:
        everything = read(asked.trace, 0) if asked.trace else generated(asked.generate)
        workloads, groups = everything[: asked.workloads or None], groups_of(everything)
        with running_platform(
            up_on_fake_nodes(groups, [each for each in asked.apart.split(",") if each])
        ) as platform:
            platform.start()
            fill_in(report, workloads, await measured(platform, workloads, groups, asked), groups)
    report.publish()


if __name__ == "__main__":
    run(main)
