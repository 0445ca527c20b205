"""How well the policy shares, on public workloads replayed by the scheduler's own code.

    python -m benchmarks.sharing_quality --traces FOLDER [--only kth,sdsc] [--limit JOBS]
        [--processes 2] [--variants base,limits,slow,clusters,others]

The traces are not part of this repository; the folder holds CSV files (gzipped or not) whose names
begin with ``kth``, ``hpc2n`` and ``sdsc``. Each is compressed in time until its machine is hard
pressed. EASY with perfect estimates is the measure: it knows how long each job runs.

base     the policy ``timeshare`` at a restart cost of 60 s, without the users' limits
limits   the same, reading the limits that users gave
slow     the same as base, at a restart cost of 300 s
clusters users dealt to six virtual clusters, each guaranteed nodes in proportion to its work;
         compared with what each would wait for alone on just those nodes
others   strict FIFO, greedy backfill, LAS, plain rotation each hour, and the oracle SRPT

Ratios are to EASY's in the same trace. Nothing here is timed but the replay's own processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.guard import run
from benchmarks.report import Benchmark, Goal, Report
from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.drive import drive
from services.scheduler.lab.results import Private, numbers
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.traces.fitting import Request
from services.scheduler.lab.traces.load import load
from services.scheduler.lab.workload import Workload, private_partitions

# The mean of fewer jobs varies too much.
CLASS_JOBS_MIN = 100
CLUSTERS = 6


@dataclass(frozen=True, slots=True)
class Trace:
    """One public workload, how it is compressed, and the goals for the mean completion time (s)."""

    name: str
    nodes: int
    arrival_scale: float
    base: float
    further: float
    limits: float
    slow: float


TRACES = (
    Trace("kth", 100, 0.75, 20_500.0, 18_000.0, 17_500.0, 25_000.0),
    Trace("hpc2n", 120, 0.72, 62_000.0, 55_000.0, 54_000.0, 67_000.0),
    Trace("sdsc", 144, 0.83, 14_100.0, 12_000.0, 11_800.0, 17_100.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One replay."""

    trace: Trace
    file: Path
    policy: str
    options: Options
    limit: int | None = None
    clusters: bool = False


EASY = ("easy", Options())
VARIANTS: Mapping[str, tuple[tuple[str, Options], ...]] = {
    "base": (("ours", Options()),),
    "limits": (("ours", Options(with_limits=True)),),
    "slow": (("ours", Options(restart_cost_s=300.0)),),
    "clusters": (("ours", Options()),),
    "others": tuple(
        (name, Options()) for name in ("fifo", "backfill", "las", "roundrobin", "srpt")
    ),
}


def replay(run: Run) -> dict[str, Any]:
    """The numbers of one replay, and the processor seconds it took."""
    trace = run.trace
    request = Request(trace.nodes, 8, None, 0.01, run.limit, "")
    workload = load(run.file, request).scaled(trace.arrival_scale)
    if run.clusters:
        workload = dealt(workload)
    began = time.process_time()
    record = drive(workload, run.policy, run.options, _quiet)
    cpu_seconds = time.process_time() - began
    private = {
        name: Private(alone, drive(alone, run.policy, run.options, _quiet))
        for name, alone in (private_partitions(workload).items() if run.clusters else ())
    }
    return {**numbers(record, workload, private), "cpu_seconds": round(cpu_seconds, 1)}


def _quiet(ended: int) -> None:
    """Progress is not shown."""


def dealt(workload: Workload) -> Workload:
    """Six virtual clusters: users by their work, the next always to the one that has least.

    Together they are guaranteed every node, each in proportion to the work of its users.
    """
    work: defaultdict[str, float] = defaultdict(float)
    for job in workload.jobs:
        work[job.user] += workload.share(job) * job.duration_s
    sums, users = [0.0] * CLUSTERS, [list[str]() for _ in range(CLUSTERS)]
    for user in sorted(work, key=lambda user: (-work[user], user)):
        least = sums.index(min(sums))
        sums[least] += work[user]
        users[least].append(user)
    parts = [max(1, int(workload.nodes * part / sum(sums))) for part in sums]
    parts[0] += workload.nodes - sum(parts)
    tree = tuple(
        VirtualCluster(f"vc{place}", float(parts[place]), users=tuple(users[place]))
        for place in range(CLUSTERS)
    )
    (group,) = workload.cluster.groups
    shared = replace(group, policy=replace(group.policy, virtual_clusters=tree))
    return replace(workload, cluster=replace(workload.cluster, groups=(shared,)))


def worst_cluster(by_vc: Mapping[str, Any]) -> float:
    """The largest ratio of a virtual cluster's mean wait to the one with nodes of its own."""
    return max(
        of["same_jobs_mean_wait_s"] / max(of["private_mean_wait_s"], 1.0)
        for of in by_vc.values()
        if of["private_mean_wait_s"] is not None
    )


def worst_class(ours: Mapping[str, Any], easy: Mapping[str, Any]) -> float | None:
    """The largest ratio of mean completion times among the size classes that have enough jobs."""
    theirs = {of["min_nodes"]: of for of in easy["by_size"]}
    ratios = [
        of["mean_jct_s"] / theirs[of["min_nodes"]]["mean_jct_s"]
        for of in ours["by_size"]
        if of["jobs"] >= CLASS_JOBS_MIN
    ]
    return round(max(ratios), 3) if ratios else None


def compared(ours: Mapping[str, Any], easy: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of one replay that have goals."""
    alone = any(of["private_mean_wait_s"] is not None for of in ours["by_vc"].values())
    big, their_big = ours["big_gangs"], easy["big_gangs"]
    has_big = big["jobs"] and their_big["jobs"]
    return {
        "mean_jct_s": round(ours["mean_jct_s"], 1),
        "big_mean_ratio": round(big["mean_jct_s"] / their_big["mean_jct_s"], 3)
        if has_big
        else None,
        "big_p99_ratio": round(big["p99_jct_s"] / their_big["p99_jct_s"], 3) if has_big else None,
        "worst_class_ratio": worst_class(ours, easy),
        "longest_gap_ratio": round(ours["longest_gap_s"] / max(easy["longest_gap_s"], 1.0), 3),
        "lost_share": round(ours["lost_share"], 5),
        "useful_ratio": round(ours["useful_share"] / easy["useful_share"], 4),
        "slowdown": round(ours["mean_bounded_slowdown"], 2),
        "worst_cluster_ratio": round(worst_cluster(ours["by_vc"]), 3) if alone else None,
        "refused_plans": ours["refused_plans"],
        "us_per_event": round(1e6 * ours["cpu_seconds"] / max(1, ours["events"]), 1),
    }


@dataclass(frozen=True, slots=True)
class Bound:
    """A goal that every trace has in these variants; the worst of them is compared with it."""

    variants: tuple[str, ...]
    figure: str
    label: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def key(self) -> str:
        """The figure of the report."""
        return f"{'_'.join(self.variants)}_worst_{self.figure}"

    def goal(self) -> Goal:
        """For the report."""
        label = f"{self.label}, worst of {', '.join(self.variants)}"
        return Goal(figure=self.key, label=label, at_most=self.at_most, at_least=self.at_least)


BOTH = ("base", "limits")
BOUNDS = (
    Bound(BOTH, "big_mean_ratio", "big gangs' mean : EASY's", at_most=0.5),
    Bound(BOTH, "big_p99_ratio", "big gangs' 99th percentile : EASY's", at_most=1.0),
    Bound(BOTH, "worst_class_ratio", "a size class's mean : EASY's", at_most=1.0),
    Bound(BOTH, "longest_gap_ratio", "longest time without service : EASY's", at_most=1.5),
    Bound(BOTH, "lost_share", "work lost by preemption", at_most=0.015),
    Bound(BOTH, "useful_ratio", "useful work : EASY's", at_least=0.995),
    Bound(BOTH, "us_per_event", "microseconds of processor time per event", at_most=120.0),
    Bound(("slow",), "big_mean_ratio", "big gangs' mean : EASY's", at_most=1.0),
    Bound(("slow",), "lost_share", "work lost by preemption", at_most=0.02),
    Bound(("clusters",), "worst_cluster_ratio", "wait : with nodes of its own", at_most=1.0),
    Bound((*BOTH, "slow", "clusters"), "refused_plans", "plans refused", at_most=0.0),
)
MEANS = {"base": "further", "limits": "limits", "slow": "slow"}
BENCHMARK = Benchmark(
    name="sharing_quality",
    alias="p6",
    question="How well does the policy share?",
    method=(
        "Three public workloads, compressed until the machine is hard pressed, replayed by the"
        " scheduler's own code on a virtual clock with restarts of 60 s (`slow`: 300 s; `limits`:"
        " the policy reads users' limits). Ratios are to EASY with perfect estimates, the floor."
    ),
    goals=(
        *(
            Goal(
                figure=f"{trace.name}_{variant}_mean_jct_s",
                label=f"{trace.name.upper()}, {variant}: mean completion time",
                at_most=getattr(trace, field),
                floor=f"{trace.name}_easy_mean_jct_s",
            )
            for trace in TRACES
            for variant, field in MEANS.items()
        ),
        *(bound.goal() for bound in BOUNDS),
    ),
    smoke=("--synthetic", "30", "--variants", "base"),
    variables={"TRACES": "--traces"},
)


def runs_of(arguments: argparse.Namespace) -> dict[tuple[str, str, str], Run]:
    """Everything that is replayed, by trace, variant and policy."""
    found: dict[tuple[str, str, str], Run] = {}
    for trace in TRACES:
        if trace.name not in arguments.only:
            continue
        files = sorted(arguments.traces.glob(f"{trace.name}*.csv*"))
        if not files:
            sys.exit(f"--traces {arguments.traces}: no file {trace.name}*.csv there")
        plan = [("easy", *EASY)]
        plan += [(name, *each) for name in arguments.variants for each in VARIANTS[name]]
        for variant, policy, options in plan:
            clusters = variant == "clusters"
            run = Run(trace, files[0], policy, options, arguments.limit, clusters)
            found[trace.name, variant, policy] = run
    return found


def synthetic(jobs: int) -> Path:
    """A folder with a made-up trace of the first name, for a quick look."""
    folder = Path(tempfile.mkdtemp())
    drawn = random.Random(1)
    lines = ["submit_time_s,duration_s,num_gpus,user,vc"]
    lines += [
        f"{number * 60},{drawn.randrange(60, 20_000)},{8 * 2 ** drawn.randrange(6)},u{number % 7},"
        for number in range(jobs)
    ]
    (folder / f"{TRACES[0].name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def main() -> None:
    """Replay, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing_quality")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--synthetic", type=int, metavar="JOBS", help="a made-up trace instead")
    parser.add_argument("--only", type=_words, default=[trace.name for trace in TRACES])
    parser.add_argument("--variants", type=_words, default=[*VARIANTS])
    parser.add_argument("--limit", type=int, help="only the first jobs of each trace")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        parser.error(f"--variants {unknown[0]}: one of {', '.join(VARIANTS)}")
    report = Report(BENCHMARK, ", ".join(arguments.variants), BENCHMARK.goals)
    if arguments.synthetic:
        arguments.traces, arguments.only = synthetic(arguments.synthetic), [TRACES[0].name]
        report.goals = ()
    if arguments.traces is None:
        report.problem = "no workloads: write TRACES=FOLDER, where they are"
    else:
        measure(report, arguments)
    report.publish()


def measure(report: Report, arguments: argparse.Namespace) -> None:
    """Replay everything and fill the report."""
    runs = runs_of(arguments)
    easy: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(arguments.processes, max_tasks_per_child=1) as pool:
        for name, result in zip(runs, pool.map(replay, runs.values()), strict=True):
            trace, variant, policy = name
            sys.stderr.write(f"{' '.join(name)}: mean {result['mean_jct_s']} s\n")
            if variant == "easy":
                easy[trace] = result
                report.floor[f"{trace}_easy_mean_jct_s"] = round(result["mean_jct_s"], 1)
                continue
            prefix = f"{trace}_{policy if variant == 'others' else variant}"
            for figure, value in compared(result, easy[trace]).items():
                report.measured[f"{prefix}_{figure}"] = value
    for bound in BOUNDS:
        found = [
            value
            for trace in arguments.only
            for variant in bound.variants
            if (value := report.measured.get(f"{trace}_{variant}_{bound.figure}")) is not None
        ]
        if found:
            report.measured[bound.key] = (max if bound.at_most is not None else min)(found)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    run(main)
