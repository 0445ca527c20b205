"""The record of a simulated run: of each job, and of the cluster over time.

The driver calls ``RunRecord.stretch`` once for each stretch of running, when it ends. Everything
else is computed from that, so every policy is measured by the same code. ``results.py`` computes
the numbers, ``report/`` draws the charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from services.scheduler.lab.workload import Workload

BINS = 2048


class Ending(Enum):
    """How a stretch of running ended."""

    FINISHED = "finished"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(slots=True)
class JobRecord:
    """One job in a run; seconds of the workload's clock.

    Attributes:
        nodes: nodes of its gang.
        share: what it occupies while it runs, in nodes.
        first_start_s: NaN until it starts.
        finish_s: NaN until it ends.
        lost_s: seconds of its running that were restart cost or work done again; times ``share``
            it is node-seconds.
        longest_gap_s: the longest time without service between submission and end.
        served_until_s: the end of its last stretch, or its submission.
    """

    submit_s: float
    work_s: float
    nodes: int
    share: float
    served_until_s: float
    first_start_s: float = math.nan
    finish_s: float = math.nan
    preemptions: int = 0
    failures: int = 0
    lost_s: float = 0.0
    longest_gap_s: float = 0.0


@dataclass(slots=True)
class Timeline:
    """An amount over time in at most ``2 * BINS`` bins of one width, however long the run is.

    ``add`` costs the same for any interval: whole bins in between are kept as differences. The
    width doubles when an interval lies beyond the last bin.
    """

    width_s: float = 60.0
    # Amount x seconds inside each bin, of intervals that cover it in part.
    partly: list[float] = field(default_factory=lambda: [0.0] * (2 * BINS))
    # Changes of the amount from one bin to the next, of intervals that cover bins wholly.
    wholly: list[float] = field(default_factory=lambda: [0.0] * (2 * BINS + 1))

    def add(self, start_s: float, end_s: float, amount: float) -> None:
        """Count an amount from one time (not before 0) to another."""
        if end_s <= start_s:
            return
        while end_s >= self.width_s * 2 * BINS:
            self._halve()
        width = self.width_s
        first, last = int(start_s / width), int(end_s / width)
        if first == last:
            self.partly[first] += amount * (end_s - start_s)
            return
        self.partly[first] += amount * ((first + 1) * width - start_s)
        self.partly[last] += amount * (end_s - last * width)
        self.wholly[first + 1] += amount
        self.wholly[last] -= amount

    def bins(self) -> list[float]:
        """The mean amount in each bin, up to the last that holds any."""
        found: list[float] = []
        level = 0.0
        for partly, change in zip(self.partly, self.wholly, strict=False):
            level += change
            found.append(level + partly / self.width_s)
        while found and abs(found[-1]) < 1e-9:  # noqa: PLR2004 - rounding
            found.pop()
        return found

    def _halve(self) -> None:
        amounts = [0.0] * (2 * BINS)
        level = 0.0
        for place, partly in enumerate(self.partly):
            level += self.wholly[place]
            amounts[place // 2] += level * self.width_s + partly
        # As partial amounts: what is still to come is added in whole bins of the new width.
        self.partly = amounts
        self.wholly = [0.0] * (2 * BINS + 1)
        self.width_s *= 2


@dataclass(slots=True)
class RunRecord:
    """A whole run under one policy.

    Attributes:
        capacity: nodes of the cluster.
        window: from the first submission to the last; ``useful`` and ``busy`` are also summed
            inside it. Where all were submitted at once, the whole run is the window.
        busy_s: node-seconds occupied, in all.
        useful_s: node-seconds of work that was kept, in all.
        lost_s: node-seconds of restart cost and of work done again, in all.
        decide_seconds: time spent in the scheduler's own code, of the machine's clock.
        events: events that the scheduler handled: arrivals, starts, ends, ticks.
        refused_plans: plans that the scheduler's own check refused; above 0 the run is invalid.
        busy, waiting: nodes occupied and jobs without service over time.
    """

    policy: str
    capacity: float
    window: tuple[float, float]
    jobs: list[JobRecord]
    decide_seconds: float = 0.0
    events: int = 0
    refused_plans: int = 0
    finished: int = 0
    busy_s: float = 0.0
    useful_s: float = 0.0
    lost_s: float = 0.0
    window_busy_s: float = 0.0
    window_useful_s: float = 0.0
    busy: Timeline = field(default_factory=Timeline)
    waiting: Timeline = field(default_factory=Timeline)
    progress: Callable[[int], None] | None = None

    def stretch(
        self,
        number: int,
        start_s: float,
        end_s: float,
        ending: Ending,
        *,
        restart_s: float = 0.0,
        redo_s: float = 0.0,
    ) -> None:
        """Count one stretch of a job's running.

        Args:
            number: the job's place in the workload.
            start_s: when it got its nodes.
            end_s: when it gave them back.
            ending: how it ended.
            restart_s: seconds at its beginning that were restart cost.
            redo_s: seconds at its end whose work is lost and will be done again.
        """
        job = self.jobs[number]
        if math.isnan(job.first_start_s):
            job.first_start_s = start_s
        gap = start_s - job.served_until_s
        job.longest_gap_s = max(job.longest_gap_s, gap)
        self.waiting.add(job.served_until_s, start_s, 1.0)
        job.served_until_s = end_s
        lost = min(restart_s + redo_s, end_s - start_s)
        job.lost_s += lost
        if ending is Ending.FINISHED:
            job.finish_s = end_s
            self.finished += 1
            if self.progress is not None:
                self.progress(self.finished)
        elif ending is Ending.PREEMPTED:
            job.preemptions += 1
        else:
            job.failures += 1
        self._occupied(job.share, (start_s, end_s), (restart_s, redo_s), lost)

    def _occupied(
        self, share: float, held: tuple[float, float], lost_ends: tuple[float, float], lost: float
    ) -> None:
        start_s, end_s = held
        restart_s, redo_s = lost_ends
        self.busy.add(start_s, end_s, share)
        self.busy_s += share * (end_s - start_s)
        self.lost_s += share * lost
        self.useful_s += share * (end_s - start_s - lost)
        opens, closes = self.window
        self.window_busy_s += share * max(0.0, min(end_s, closes) - max(start_s, opens))
        useful_from, useful_to = start_s + restart_s, end_s - redo_s
        self.window_useful_s += share * max(0.0, min(useful_to, closes) - max(useful_from, opens))


def begin(
    workload: Workload, policy: str, progress: Callable[[int], None] | None = None
) -> RunRecord:
    """The empty record of a run, with a record for every job."""
    jobs = [
        JobRecord(job.submit_s, job.duration_s, job.nodes, workload.share(job), job.submit_s)
        for job in workload.jobs
    ]
    opens = workload.jobs[0].submit_s if workload.jobs else 0.0
    closes = workload.jobs[-1].submit_s if workload.jobs else 0.0
    return RunRecord(
        policy=policy,
        capacity=float(workload.nodes),
        window=(opens, closes if closes > opens else math.inf),
        jobs=jobs,
        progress=progress,
    )
