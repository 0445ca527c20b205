"""From submission to running, on the durable path and the process runtime.

    python -m benchmarks.submit_to_running [--seconds 60] [--rate 20] [--gang-rate 2.5]

An open loop submits through the HTTP gateway of ``shiftwork up`` whether or not earlier tasks have
begun; a task runs when the first byte of its child (of the last child, for a gang) is written, by
the child's clock, counted from the time at which it was due to be submitted. Nodes are free:
each task ends at once.

Gangs come at 2.5/s: eight processes each make 20 processes/s, the rate of the single tasks, so
that both phases ask the same of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import chain
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
    up,
    writes_its_time,
    written_times,
)
from benchmarks.report import Benchmark, Goal, Report, percentile, spread

BENCHMARK = Benchmark(
    name="submit_to_running",
    alias="p1",
    question="How soon does a submitted task run?",
    method=(
        "An open loop submits through the HTTP gateway, 20 tasks a second of one node, then 2.5"
        " gangs a second of eight; a task runs when its last child has written its first byte."
        " Floor: a chain of one commit, two hops through JetStream and the child."
    ),
    goals=(
        Goal(figure="one_running_over_chain", label="one node, median : the chain's", at_most=4.0),
        Goal(figure="one_running_p99_ms", label="one node, 99th percentile", at_most=60.0),
        Goal(figure="gang_running_p99_ms", label="8-node gang, 99th percentile", at_most=60.0),
        Goal(figure="one_cpu_ms_per_task", label="processor time of a one-node task", at_most=20.0),
        Goal(
            figure="one_transactions_per_task",
            label="transactions of a one-node task",
            at_most=10.0,
        ),
    ),
    smoke=("--seconds", "1", "--rate", "5", "--gang-rate", "1", "--chains", "5", "--warm-up", "2"),
)
NODES, SLOTS = 24, 1
GANG = 8
# Statistics of the database are up to a second late.
STATISTICS_SECONDS = 1.2
TRANSACTIONS = "SELECT sum(xact_commit) FROM pg_stat_database"
# How long after the last submission everything has to have run.
DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Phase:
    """Tasks of one size at one rate."""

    name: str
    nodes: int
    rate: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Seconds from due to running, from due to the 201, and what the machine gave for it."""

    running: list[float]
    accepted: list[float]
    cpu_s: dict[str, float]
    transactions: int = 0


async def load(http: Http, out: Path, phase: Phase, count: int) -> Outcome:
    """Submit ``count`` tasks, each when it is due; wait until all have run."""
    accepted: list[float] = [0.0] * count
    due: list[float] = [0.0] * count
    ids: list[str] = [""] * count
    begin = now_s() + 0.05

    async def one(number: int) -> None:
        due[number] = begin + number / phase.rate
        await asyncio.sleep(max(0.0, due[number] - now_s()))
        ids[number] = await http.submit(
            name=f"{phase.name}-{number}",
            nodes=phase.nodes,
            command=writes_its_time(out / f"{phase.name}-{number}"),
            working_directory="/",
        )
        accepted[number] = now_s() - due[number]

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    running: list[float] = []
    ends_at = time.monotonic() + DRAIN_SECONDS
    for number in range(count):
        prefix = out / f"{phase.name}-{number}"
        while (times := written_times(prefix, phase.nodes)) is None:
            if time.monotonic() > ends_at:
                raise BenchmarkError(f"{phase.name}-{number} ({ids[number]}) never ran")
            await asyncio.sleep(0.02)
        running.append(max(times) - due[number])
    await http.until(ids, seconds=DRAIN_SECONDS)
    return Outcome(running, accepted, {})


async def transactions(platform: Platform) -> int:
    """Transactions that the database committed so far."""
    await asyncio.sleep(STATISTICS_SECONDS)
    async with database_of(platform) as database:
        return int(await database.fetchval(TRANSACTIONS))


async def measured(platform: Platform, phases: list[Phase], warm_up: int) -> dict[str, Outcome]:
    """Every phase, one after the other, on one platform."""
    http = Http(platform.url, platform.token)
    out = platform.folder / "out"
    out.mkdir()
    found: dict[str, Outcome] = {}
    try:
        await ready_nodes(http, NODES)
        for phase in phases:
            warm = Phase(f"warm-{phase.name}", phase.nodes, phase.rate, 0)
            await load(http, out, warm, max(1, warm_up // phase.nodes))
            committed = await transactions(platform)
            before = platform.cpu_seconds()
            outcome = await load(http, out, phase, max(1, round(phase.rate * phase.seconds)))
            used = parts(before, platform.cpu_seconds())
            committed = await transactions(platform) - committed
            found[phase.name] = replace(outcome, cpu_s=used, transactions=committed)
    finally:
        http.close()
    return found


async def main() -> None:
    """Measure, compare with the bare chain of the same minutes, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--gang-rate", type=float, default=2.5)
    parser.add_argument("--chains", type=int, default=150)
    parser.add_argument("--warm-up", type=int, default=20, help="tasks before each phase")
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.rate:g}/s of one node, {asked.gang_rate:g}/s of {GANG} nodes",
        BENCHMARK.goals,
    )
    phases = [
        Phase("one", 1, asked.rate, asked.seconds),
        Phase("gang", GANG, asked.gang_rate, asked.seconds),
    ]
    bare = await chain.measure(asked.chains // 2, 1)
    with running_platform(up(NODES, SLOTS)) as platform:
        platform.start()
        found = await measured(platform, phases, asked.warm_up)
    again = await chain.measure(asked.chains // 2, 1)
    bare_gang = await chain.measure(asked.chains // 5, GANG)
    for name in bare:
        bare[name] += again[name]
    for name, outcome in found.items():
        report.measured |= spread(outcome.running, f"{name}_running")
        report.measured[f"{name}_accepted_p50_ms"] = round(
            percentile(outcome.accepted, 0.5) * 1000, 2
        )
        for kind, used in outcome.cpu_s.items():
            share = used / len(outcome.running) * 1000
            report.measured[f"{name}_cpu_ms_per_task_{kind}"] = round(share, 2)
        tasks = len(outcome.running)
        report.measured[f"{name}_cpu_ms_per_task"] = round(
            1000 * sum(outcome.cpu_s.values()) / tasks, 2
        )
        report.measured[f"{name}_transactions_per_task"] = round(outcome.transactions / tasks, 1)
    report.floor |= spread(bare["chain"], "one_running") | spread(
        bare_gang["chain"], "gang_running"
    )
    for name in ("commit", "hop", "walk"):
        report.floor[f"{name}_p50_ms"] = round(percentile(bare[name], 0.5) * 1000, 2)
    report.floor["gang_walk_p50_ms"] = round(percentile(bare_gang["walk"], 0.5) * 1000, 2)
    for name, floor in (("one", bare), ("gang", bare_gang)):
        middle = percentile(found[name].running, 0.5)
        for kind in ("chain", "walk"):
            ratio = middle / percentile(floor[kind], 0.5)
            report.measured[f"{name}_running_over_{kind}"] = round(ratio, 2)
    report.publish()


if __name__ == "__main__":
    run(main)
