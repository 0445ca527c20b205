"""The scheduler's core without I/O: gang decisions per second, and the time of one submission.

    python -m benchmarks.decisions_per_second [--sizes small,large] [--seconds 5]

Facts go into the index, ``decide`` and ``check`` run, the changed rows go into the index again, as
in the leader, but for the store. Gangs of 1 to 64 nodes at four priorities, 300 users in 12 virtual
clusters that own nine tenths of the nodes; ``timeshare``. Every figure is CPU time.

*Burst*: gangs come a thousand at a time until the queue is as long as it is to be; *turnover*: each
second runs end and as many gangs come; *submit*: one gang comes to a full cluster, by itself. The
wide case: ten gangs of 5,000 ranks, one after the other on 5,000 nodes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.core import Clock, SimulatedCluster, filled, quiet_memory
from benchmarks.guard import run
from benchmarks.report import Benchmark, Goal, Report, percentile, spread
from libs.contracts.messages import Priority

BENCHMARK = Benchmark(
    name="decisions_per_second",
    alias="p3",
    question="How many gangs does the scheduler's core decide per second?",
    method=(
        "Index, decide, check and the changed rows, without I/O, in processor time: 1,500 nodes and"
        " 10,000 gangs queued and 10,000 nodes with 100,000, gangs of 1 to 64 nodes at four"
        " priorities of 300 users in 12 virtual clusters."
    ),
    goals=(
        Goal(
            figure="small_burst_per_s", label="decisions per second, 1,500 nodes", at_least=20_000
        ),
        Goal(figure="large_burst_per_s", label="decisions per second, 10,000 nodes", at_least=1e4),
        Goal(figure="small_submit_p99_ms", label="one submission, 1,500 nodes, p99", at_most=0.5),
        Goal(figure="large_submit_p99_ms", label="one submission, 10,000 nodes, p99", at_most=1.0),
        Goal(figure="wide_10x5000_s", label="ten gangs of 5,000 nodes", at_most=1.0),
    ),
    smoke=("--sizes", "tiny", "--seconds", "0.1", "--submits", "20"),
)
BATCH, TURNOVER = 1_000, 16
WIDE_GANGS, WIDE_NODES = 10, 5_000
SUBMITS = 1_000


@dataclass(frozen=True)
class Size:
    """A cluster, and how long its queue is."""

    name: str
    nodes: int
    queued: int


SIZES = (Size("tiny", 50, 200), Size("small", 1_500, 10_000), Size("large", 10_000, 100_000))


def burst(size: Size) -> tuple[SimulatedCluster, float]:
    """All users submit at once; decisions per second of CPU."""
    cluster = filled(size.nodes, 0)
    clock, before = Clock(), cluster.count.decisions
    with quiet_memory():
        for _ in range(0, size.queued, BATCH):
            rows = [cluster.task() for _ in range(BATCH)]
            cluster.advance(1.0)
            with clock:
                cluster.put(*rows)
                cluster.decide()
    cluster.leave_all()
    cluster.settle()
    return cluster, (cluster.count.decisions - before) / clock.seconds


def turnover(cluster: SimulatedCluster, seconds: float) -> float:
    """Runs end, gangs are submitted, waiting gangs start; decisions per second of CPU."""
    clock, before = Clock(), cluster.count.decisions
    with quiet_memory():
        while clock.seconds < seconds:
            cluster.advance(1.0)
            running = cluster.running()
            ended = cluster.random.sample(running, min(TURNOVER, len(running)))
            came = [cluster.task() for _ in ended]
            with clock:
                cluster.end(*ended)
                cluster.put(*came)
                cluster.settle()
    return (cluster.count.decisions - before) / clock.seconds


def submits(cluster: SimulatedCluster, count: int) -> list[float]:
    """Gangs are submitted one at a time; CPU seconds until the plan for each is committed."""
    found: list[float] = []
    with quiet_memory():
        for _ in range(count):
            cluster.advance(0.1)
            task = cluster.task()
            clock = Clock()
            with clock:
                cluster.put(task)
                cluster.decide()
            found.append(clock.seconds)
            cluster.settle()
    return found


def wide() -> float:
    """Ten gangs that each need all of 5,000 nodes, from the submission to the last start."""
    cluster = SimulatedCluster(WIDE_NODES)
    gangs = [cluster.task(WIDE_NODES, Priority.NORMAL) for _ in range(WIDE_GANGS)]
    clock = Clock()
    with quiet_memory(), clock:
        cluster.put(*gangs)
        for _ in gangs:
            cluster.settle()
            cluster.end(*cluster.running())
    assert not cluster.index.tasks, "every gang had its turn"
    return clock.seconds


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="small,large")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--submits", type=int, default=SUBMITS)
    asked = parser.parse_args()
    sizes = [size for size in SIZES if size.name in asked.sizes.split(",")]
    report = Report(
        BENCHMARK, f"sizes {asked.sizes}", () if asked.sizes == "tiny" else BENCHMARK.goals
    )
    faults = 0
    for size in sizes:
        cluster, rate = burst(size)
        report.measured[f"{size.name}_burst_per_s"] = round(rate)
        report.measured[f"{size.name}_turnover_per_s"] = round(turnover(cluster, asked.seconds))
        times = submits(cluster, asked.submits)
        report.measured |= spread(times, f"{size.name}_submit")
        report.measured[f"{size.name}_submit_p90_ms"] = round(percentile(times, 0.9) * 1e3, 2)
        faults += cluster.count.faults
    if asked.sizes != "tiny":
        report.measured[f"wide_{WIDE_GANGS}x{WIDE_NODES}_s"] = round(wide(), 3)
    assert not faults, f"check found {faults} faults"
    report.publish()


if __name__ == "__main__":
    run(main)
