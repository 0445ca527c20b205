"""The report's prose: what was run, and what its words mean."""

from __future__ import annotations

from libs.contracts.wording import counted, plural
from services.scheduler.lab.options import Options
from services.scheduler.lab.report.plot import span
from services.scheduler.lab.workload import Workload

DEFINITIONS = (
    ("completion time", "from submission to end"),
    (
        "wait, time not working",
        "completion time without the job's own work: queued, preempted, restarting, working again",
    ),
    ("big gangs", "jobs on at least a quarter of the nodes"),
    (
        "slowdown",
        "completion time over work, where work below a minute counts as one; at least 1",
    ),
    ("longest gap", "the longest that any job was without service between submission and end"),
    (
        "utilisation, useful",
        "nodes occupied, and with work that was kept, between the first and the last submission",
    ),
    ("lost work", "restart cost and work done again, of all running"),
    ("Gini of users", "of the users' mean slowdowns: 0 if all are served alike"),
)


def run_in_words(workload: Workload, options: Options) -> str:
    """One paragraph: cluster, jobs and options."""
    jobs, nodes, each = len(workload.jobs), workload.nodes, counted(workload.gpus_per_node, "GPU")
    parts = [
        f"{jobs:,} {plural(jobs, 'job')} on {nodes:,} {plural(nodes, 'node')} with {each} each",
        f"every restart costs {span(options.restart_cost_s)}",
        "checkpoints on request"
        if not options.checkpoint_interval_s
        else f"a checkpoint every {span(options.checkpoint_interval_s)}",
        "users' time limits may be read" if options.with_limits else "no estimates of durations",
    ]
    if options.node_mtbf_s:
        parts.append(f"each node fails every {span(options.node_mtbf_s)} on average")
    if workload.skipped:
        lines = plural(workload.skipped, "line")
        parts.append(f"without {workload.skipped:,} {lines} of the trace")
    return "; ".join(parts) + "."
