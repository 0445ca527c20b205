"""Computes the numbers of ``results.json`` from the record of a run. Called by ``study.py``.

- *jct*: from submission to end. *wait*: jct without the job's own work: queued, preempted,
  restarting, doing work again. *first_wait* ends at the first
  start. *bounded slowdown*: jct over work, where work below 60 s counts as 60 s, at least 1.
- *utilisation* and *useful_share*: node-seconds occupied, and those of work that was kept, of the
  capacity between the first and the last submission (the whole run, if all came at once).
- *lost_share*: node-seconds of restart cost and work done again, of all running.
- *by_user_gini*: Gini coefficient of the users' mean bounded slowdowns; 0: all are served equally.
- Percentiles are interpolated linearly. Jobs that never ended are counted and left out of means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.scheduler.lab.record import JobRecord, RunRecord
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Workload, fits

SLOWDOWN_SECONDS_MIN = 60.0
BIG_PART = 4
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Private:
    """A virtual cluster's own run on the nodes it is guaranteed."""

    workload: Workload
    record: RunRecord


def document(
    workload: Workload, policies: Mapping[str, Numbers], options: Options | None = None
) -> Numbers:
    """The whole of ``results.json``."""
    found: Numbers = {
        "trace": workload.name,
        "nodes": workload.nodes,
        "gpus_per_node": workload.gpus_per_node,
        "jobs": len(workload.jobs),
        "skipped": workload.skipped,
        "policies": dict(policies),
    }
    if options is not None:
        found["options"] = asdict(options)
    return found


def numbers(
    record: RunRecord, workload: Workload, private: Mapping[str, Private] | None = None
) -> Numbers:
    """One policy's entry."""
    ended = [job for job in record.jobs if not math.isnan(job.finish_s)]
    jcts = sorted(jct(job) for job in ended)
    waits = sorted(wait(job) for job in ended)
    first_waits = [job.first_start_s - job.submit_s for job in ended]
    running = record.useful_s + record.lost_s
    count = max(1, len(record.jobs))
    opens, last = _span(record, ended)
    window = record.capacity * (min(record.window[1], last) - opens)
    return {
        "mean_jct_s": _mean(jcts),
        "p50_jct_s": percentile(jcts, 50),
        "p90_jct_s": percentile(jcts, 90),
        "p99_jct_s": percentile(jcts, 99),
        "mean_wait_s": _mean(waits),
        "p99_wait_s": percentile(waits, 99),
        "max_wait_s": _rounded(waits[-1]) if waits else None,
        "mean_first_wait_s": _mean(first_waits),
        "mean_bounded_slowdown": _mean([slowdown(job) for job in ended]),
        "longest_gap_s": _rounded(max((job.longest_gap_s for job in record.jobs), default=0.0)),
        "utilisation": _ratio(record.window_busy_s, window),
        "useful_share": _ratio(record.window_useful_s, window),
        "utilisation_whole_run": _ratio(record.busy_s, record.capacity * (last - opens)),
        "lost_share": _ratio(record.lost_s, running),
        "preemptions_per_job": _ratio(sum(job.preemptions for job in record.jobs), count),
        "failures_per_job": _ratio(sum(job.failures for job in record.jobs), count),
        "makespan_s": _rounded(last - opens),
        "decide_seconds": _rounded(record.decide_seconds),
        "events": record.events,
        "unfinished": len(record.jobs) - len(ended),
        "refused_plans": record.refused_plans,
        "by_size": [_class(low, high, of) for low, high, of in by_size(ended, record.capacity)],
        "big_gangs": _big(ended, record.capacity),
        "by_vc": _by_vc(record, workload, private or {}),
        "by_user_gini": gini(user_slowdowns(record, workload).values()),
    }


# --- of one job -----------------------------------------------------------------------------


def jct(job: JobRecord) -> float:
    """Completion time; seconds."""
    return job.finish_s - job.submit_s


def wait(job: JobRecord) -> float:
    """The time between submission and end without the job's own work; seconds."""
    return max(0.0, jct(job) - job.work_s)


def slowdown(job: JobRecord) -> float:
    """Bounded slowdown: times longer than alone."""
    return max(1.0, jct(job) / max(job.work_s, SLOWDOWN_SECONDS_MIN))


def size_classes(capacity: float) -> list[tuple[int, int]]:
    """Least and most nodes: 1, 2, 3-4, 5-8, … up to the machine."""
    found = [(1, 1)]
    while found[-1][1] < capacity:
        low = found[-1][1] + 1
        found.append((low, min(2 * (low - 1), int(capacity)) if low > 1 else 1))
    return found


# --- of many --------------------------------------------------------------------------------


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """A percentile of values in rising order, interpolated linearly; None without values."""
    if not ordered:
        return None
    at = (len(ordered) - 1) * percent / 100.0
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return _rounded(ordered[low] + (ordered[high] - ordered[low]) * (at - low))


def gini(values: Iterable[float]) -> float | None:
    """Gini coefficient: 0 if all values are equal, near 1 if one has all; None without values."""
    ordered = sorted(values)
    total = sum(ordered)
    if not ordered or total <= 0:
        return None
    count = len(ordered)
    ranked = sum((place + 1) * value for place, value in enumerate(ordered))
    return _rounded(2.0 * ranked / (count * total) - (count + 1) / count)


def user_slowdowns(record: RunRecord, workload: Workload) -> dict[str, float]:
    """Each user's mean bounded slowdown."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for job, of in zip(workload.jobs, record.jobs, strict=True):
        if not math.isnan(of.finish_s):
            entry = sums[job.user]
            entry[0] += slowdown(of)
            entry[1] += 1.0
    return {user: total / count for user, (total, count) in sums.items()}


def _span(record: RunRecord, ended: Sequence[JobRecord]) -> tuple[float, float]:
    """First submission and last end."""
    opens = record.window[0]
    return opens, max((job.finish_s for job in ended), default=opens)


def by_size(ended: Sequence[JobRecord], capacity: float) -> list[tuple[int, int, list[JobRecord]]]:
    """Least nodes, most nodes and jobs of each size class that has jobs."""
    classes = size_classes(capacity)
    found: list[list[JobRecord]] = [[] for _ in classes]
    for job in ended:
        found[min((job.nodes - 1).bit_length(), len(classes) - 1)].append(job)
    return [(low, high, of) for (low, high), of in zip(classes, found, strict=True) if of]


def _class(low: int, high: int, of: Sequence[JobRecord]) -> Numbers:
    jcts = sorted(jct(job) for job in of)
    return {
        "min_nodes": low,
        "max_nodes": high,
        "jobs": len(of),
        "mean_jct_s": _mean(jcts),
        "p99_jct_s": percentile(jcts, 99),
        "max_wait_s": _rounded(max((wait(job) for job in of), default=0.0)) if of else None,
    }


def _big(ended: Sequence[JobRecord], capacity: float) -> Numbers:
    least = max(1, math.ceil(capacity / BIG_PART))
    return _class(least, int(capacity), [job for job in ended if job.nodes >= least])


def _by_vc(
    record: RunRecord, workload: Workload, private: Mapping[str, Private]
) -> dict[str, Numbers]:
    mine: defaultdict[str, list[JobRecord]] = defaultdict(list)
    same: defaultdict[str, list[JobRecord]] = defaultdict(list)
    for job, of in zip(workload.jobs, record.jobs, strict=True):
        if math.isnan(of.finish_s):
            continue
        vc = workload.virtual_cluster_of(job)
        mine[vc].append(of)
        alone = private.get(vc)
        if alone is not None and fits(job, alone.workload.cluster.groups[0].nodes):
            same[vc].append(of)
    return {
        vc: _compared(of, same[vc], private[vc].record if vc in private else None)
        for vc, of in sorted(mine.items())
    }


def _compared(
    of: Sequence[JobRecord], same: Sequence[JobRecord], private: RunRecord | None
) -> Numbers:
    """One virtual cluster. Gangs larger than the partition never run there: ``same_jobs_`` are the
    shared figures of the jobs that do, which is what the private ones compare to.
    """
    found: Numbers = {
        "jobs": len(of),
        "mean_wait_s": _mean([wait(job) for job in of]),
        "mean_jct_s": _mean([jct(job) for job in of]),
        "private_mean_wait_s": None,
        "private_mean_jct_s": None,
    }
    if private is not None:
        ended = [job for job in private.jobs if not math.isnan(job.finish_s)]
        found |= {
            "private_mean_wait_s": _mean([wait(job) for job in ended]),
            "private_mean_jct_s": _mean([jct(job) for job in ended]),
            "private_jobs": len(ended),
            "same_jobs_mean_wait_s": _mean([wait(job) for job in same]),
            "same_jobs_mean_jct_s": _mean([jct(job) for job in same]),
        }
    return found


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(math.fsum(values) / len(values)) if values else None


def _ratio(amount: float, of: float) -> float:
    return _rounded(amount / of) if of > 0 else 0.0


def _rounded(value: float) -> float:
    return round(value, 6)
