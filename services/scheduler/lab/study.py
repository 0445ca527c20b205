"""One call of ``shiftwork simulate``: runs every policy over one workload and writes the results.

``results.json``, ``report.html`` and for each policy ``jobs-POLICY.csv``, each written
completely or not at all. The driver is an argument, so that tests can pass another one.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from services.scheduler.lab.errors import LabError
from services.scheduler.lab.record import RunRecord
from services.scheduler.lab.report.curves import Curves, curves
from services.scheduler.lab.report.page import page
from services.scheduler.lab.results import Numbers, Private, document, jct, wait
from services.scheduler.lab.run_options import Drive, Options
from services.scheduler.lab.workload import Workload, private_partitions

# Called while it runs: the name of the run, jobs ended, jobs in all.
ReportProgress = Callable[[str, int, int], None]
PROGRESS_STEPS = 200
_JOB_COLUMNS = (
    "number",
    "submit_s",
    "first_start_s",
    "finish_s",
    "work_s",
    "wait_s",
    "jct_s",
    "nodes",
    "gpus_per_node",
    "user",
    "vc",
    "preemptions",
    "failures",
    "lost_s",
    "longest_gap_s",
)


@dataclass(frozen=True, slots=True)
class Study:
    """The runs to make; ``private``: also each virtual cluster alone on its guaranteed nodes."""

    workload: Workload
    policies: tuple[str, ...]
    options: Options
    out: Path
    private: bool = True


def run(study: Study, drive: Drive, report: ReportProgress) -> Numbers:
    """Run every policy, write the files, return what ``results.json`` contains. Raises LabError."""
    workload, options = study.workload, study.options
    _folder(study.out)
    partitions = private_partitions(workload) if study.private else {}
    found: list[Curves] = []
    for policy in study.policies:
        record = drive(workload, policy, options, _progress(report, policy, workload))
        private: dict[str, Private] = {}
        for vc, alone in partitions.items():
            progress_alone = _progress(report, f"{policy}, {vc} alone", alone)
            private[vc] = Private(alone, drive(alone, policy, options, progress_alone))
        _write_jobs(study.out / f"jobs-{policy}.csv", workload, record)
        # A record may hold a million jobs, so only its curves are kept.
        found.append(curves(record, workload, private))
    results = document(workload, {run.policy: run.numbers for run in found}, options)
    results["notes"] = [*workload.notes, *_never_ended(results)]
    with _whole(study.out / "results.json") as file:
        json.dump(results, file, indent=2, allow_nan=False)
        file.write("\n")
    with _whole(study.out / "report.html") as file:
        file.write(page(workload, options, found))
    return results


def _never_ended(results: Numbers) -> Iterator[str]:
    """Notes about jobs that never ran: the means leave them out."""
    for policy, numbers in results["policies"].items():
        left = numbers["unfinished"]
        if left:
            yield (
                f"{policy}: {left} of {results['jobs']} jobs never ran: a quota or a virtual"
                " cluster's nodes_max is smaller than they are; the numbers leave them out"
            )


def _progress(report: ReportProgress, what: str, workload: Workload) -> Callable[[int], None]:
    """A cheap progress function: most calls only compare two numbers."""
    total = len(workload.jobs)
    step = max(1, total // PROGRESS_STEPS)
    due = 0

    def progress(ended: int) -> None:
        nonlocal due
        if ended >= due:
            due = ended + step
            report(what, ended, total)

    report(what, 0, total)
    return progress


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"the folder cannot be made: {error.strerror}", where=f"--out {path}", fix="another one"
        ) from None


@contextmanager
def _whole(path: Path) -> Generator[TextIO]:
    """A text file that gets its name when it is complete."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", errors="replace", newline="") as file:
            yield file
        os.replace(part, path)  # noqa: PTH105 - as Path.replace, but explicit
    except OSError as error:
        raise LabError(
            f"it cannot be written: {error.strerror}", where=str(path), fix="free some space"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _write_jobs(path: Path, workload: Workload, record: RunRecord) -> None:
    with _whole(path) as file:
        writer = csv.writer(file)
        writer.writerow(_JOB_COLUMNS)
        for job, of in zip(workload.jobs, record.jobs, strict=True):
            ended = not math.isnan(of.finish_s)
            writer.writerow(
                (
                    job.number,
                    _cell(of.submit_s),
                    _cell(of.first_start_s),
                    _cell(of.finish_s),
                    _cell(of.work_s),
                    _cell(wait(of)) if ended else "",
                    _cell(jct(of)) if ended else "",
                    job.nodes,
                    "" if job.gpus_per_node is None else job.gpus_per_node,
                    job.user,
                    workload.virtual_cluster_of(job),
                    of.preemptions,
                    of.failures,
                    _cell(of.lost_s),
                    _cell(of.longest_gap_s),
                )
            )


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}".rstrip("0").rstrip(".")
