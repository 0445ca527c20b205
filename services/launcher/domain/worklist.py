"""Tracks which runs have to be stepped, and the wanted actions of the others. Committed rows, scans
and the clock each concern few of many runs, and a round costs no more than those. Used by
``loop.py``. It is in memory only; a new leader rebuilds it from the rows and the next scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from libs.contracts.ids import RunId, TaskId
from services.launcher.domain import role_order
from services.launcher.domain.model import Listing, ObservedRun, ReadyReport, Run, RunState
from services.launcher.domain.reconcile import (
    Action,
    Policy,
    RunView,
    Scan,
    Step,
    answers,
    step,
    step_orphan,
)
from services.launcher.domain.run_lifecycle import LIVE

# Reports of readiness are noted together, so long after the first of them, and longer for a large
# gang: each one would otherwise write the row of the whole gang again.
REPORTS_SECONDS_MIN, REPORTS_SECONDS_FOR_EACH = 0.2, 0.0002

# The pause before a run is stepped again whose step failed: doubled from the first to the most.
RETRY_SECONDS_FIRST, RETRY_SECONDS_MAX = 1.0, 60.0

NOTHING = ObservedRun(RunId.parse("nothing.0"), {})

# A set in order of insertion, so that runs are launched in the order of their assignments.
RunSet = dict[RunId, None]


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step that raised: a defect, which stops only its run."""

    problem: Exception
    # How often in a row, this time included, and when the run is stepped again.
    failures: int
    again_at: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """Changed rows, all wanted actions, and the latest time of the next round."""

    runs: tuple[Run, ...]
    actions: tuple[Action, ...]
    due_at: datetime | None = None
    # Reports of readiness that are noted, or came too late.
    reports: tuple[ReadyReport, ...] = ()
    # The evaluated runs.
    steps: Mapping[RunId, Step] = field(default_factory=dict[RunId, Step], compare=False)
    # The runs whose step raised. Their rows and wanted actions stay as they are.
    failed: Mapping[RunId, FailedStep] = field(
        default_factory=dict[RunId, FailedStep], compare=False
    )
    # The evaluated runs of which all nodes answered.
    observed: frozenset[RunId] = field(default=frozenset(), compare=False)


class Worklist:
    """Every run that is not forgotten, and the set of those that have to be stepped."""

    def __init__(
        self,
        runs: Iterable[Run] = (),
        unreadable: Iterable[RunId] = (),
        reports: Iterable[ReadyReport] = (),
    ) -> None:
        self.runs: dict[RunId, Run] = {}
        # Runs whose rows cannot be decoded: they are neither removed nor stepped.
        self._unreadable = set(unreadable)
        self._of_task: dict[str, dict[int, RunId]] = {}
        self._on_node: dict[str, RunSet] = {}
        self._starting: RunSet = {}
        # What programs have reported and the rows of their runs do not have, by run and rank.
        self._reports: dict[RunId, dict[int, ReadyReport]] = {}
        self._scan: Scan | None = None
        self._dirty: RunSet = {}
        self._wanted: dict[RunId, tuple[Action, ...]] = {}
        self._due: dict[RunId, datetime] = {}
        self._failed: dict[RunId, FailedStep] = {}
        # Runs that this leader has observed on all their nodes: until then, no time that an earlier
        # leader noted counts.
        self.observed: set[RunId] = set()
        self.apply((*runs, *reports))

    # Queries

    def starting(self) -> Iterator[Run]:
        """Runs that have not started, or of which some role has not."""
        return (self.runs[run_id] for run_id in self._starting)

    def is_busy(self, node_id: str) -> bool:
        """Whether a node holds runs that are not over."""
        return any(self.runs[run_id].state in LIVE for run_id in self._on_node.get(node_id, ()))

    def is_live(self, run_id: RunId) -> bool:
        """Whether a run is not over."""
        run = self.runs.get(run_id)
        return run is not None and run.state in LIVE

    def fails(self, run_id: RunId) -> bool:
        """Whether the last step of a run raised."""
        return run_id in self._failed

    # Updates

    def apply(
        self,
        put: Iterable[object],
        deleted: Iterable[tuple[type[object], tuple[object, ...]]] = (),
    ) -> None:
        """Apply committed rows. A change of one attempt concerns all attempts of its task."""
        for kind, key in deleted:
            if kind is Run:
                task_id, attempt = key
                assert isinstance(task_id, str), "the key of a run"
                assert isinstance(attempt, int), "the key of a run"
                self._drop(RunId(TaskId(task_id), attempt))
            elif kind is ReadyReport:
                self._drop_report(key)
        for row in put:
            if isinstance(row, Run):
                self._put(row)
            elif isinstance(row, ReadyReport):
                of_run = self._reports.setdefault(RunId(TaskId(row.task_id), row.attempt), {})
                of_run[row.rank] = row

    def _drop_report(self, key: tuple[object, ...]) -> None:
        task_id, attempt, rank = key
        assert isinstance(task_id, str), "the key of a report"
        assert isinstance(attempt, int), "the key of a report"
        assert isinstance(rank, int), "the key of a report"
        run_id = RunId(TaskId(task_id), attempt)
        of_run = self._reports.get(run_id, {})
        of_run.pop(rank, None)
        if not of_run:
            self._reports.pop(run_id, None)

    def _put(self, run: Run) -> None:
        run_id = run.id
        self._unreadable.discard(run_id)
        before = self.runs.get(run_id)
        self.runs[run_id] = run
        if before is None:
            self._of_task.setdefault(run.task_id, {})[run.attempt] = run_id
        if before is None or before.placements != run.placements:
            self._leave(run_id, before)
            for place in run.placements:
                self._on_node.setdefault(place.node_id, {})[run_id] = None
        if run.state is RunState.ASSIGNED or role_order.waiting_roles(run):
            self._starting[run_id] = None
        else:
            self._starting.pop(run_id, None)
        self._mark_task_dirty(run.task_id)

    def _drop(self, run_id: RunId) -> None:
        if run_id in self._unreadable:
            self._unreadable.discard(run_id)
            self._dirty[run_id] = None
        run = self.runs.pop(run_id, None)
        if run is None:
            return
        self._leave(run_id, run)
        self._starting.pop(run_id, None)
        self.observed.discard(run_id)
        attempts = self._of_task[run.task_id]
        del attempts[run.attempt]
        if not attempts:
            del self._of_task[run.task_id]
        self._dirty[run_id] = None
        self._mark_task_dirty(run.task_id)

    def _leave(self, run_id: RunId, run: Run | None) -> None:
        for place in run.placements if run is not None else ():
            there = self._on_node.get(place.node_id, {})
            there.pop(run_id, None)
            if not there:
                self._on_node.pop(place.node_id, None)

    def _mark_task_dirty(self, task_id: str) -> None:
        self._mark_dirty(self._of_task.get(task_id, {}).values())

    def _mark_dirty(self, run_ids: Iterable[RunId]) -> None:
        self._dirty.update(dict.fromkeys(run_ids))

    def update_scan(self, scan: Scan) -> None:
        """Apply the latest scan, and add the runs that it concerns to the dirty ones."""
        before, self._scan = self._scan, scan
        if before is None:
            self._mark_dirty(self.runs)
            self._mark_dirty(scan.listing.runs)
            return
        self._mark_dirty(_changed_runs(before.listing, scan.listing))
        self._mark_dirty(sorted({action.run_id for action in before.done ^ scan.done}))
        if before.refused != scan.refused:
            self._mark_dirty(before.refused)
            self._mark_dirty(scan.refused)
        for node_id in _changed_nodes(before.listing, scan.listing):
            self._mark_dirty(self._on_node.get(node_id, ()))

    def mark_dirty(self, run_id: RunId) -> None:
        """Step this run in the next round."""
        self._dirty[run_id] = None

    # A round

    def take_dirty(self) -> RunSet:
        """Take the dirty runs for one round. If it fails, call ``restore_dirty``."""
        taken, self._dirty = self._dirty, {}
        return taken

    def restore_dirty(self, dirty: RunSet) -> None:
        """Restore the dirty runs of a round that was not committed."""
        self._dirty = dirty | self._dirty

    def step(self, dirty: RunSet, scan: Scan, now: datetime, policy: Policy) -> Outcome:
        """Step runs that are dirty or due. ``scan``: the latest one when they were taken. Call
        ``commit`` to store the outcome."""
        due = dict.fromkeys(run_id for run_id, at in self._due.items() if at <= now)
        reported = {run_id: self._noted_at(run_id) for run_id in self._reports}
        due |= dict.fromkeys(run_id for run_id, at in reported.items() if at <= now)
        due |= dict.fromkeys(
            run_id for run_id, each in self._failed.items() if each.again_at <= now
        )
        again = {run_id: each for run_id, each in self._failed.items() if each.again_at > now}
        steps, failed = dict[RunId, Step](), dict[RunId, FailedStep]()
        for run_id in [run_id for run_id in dirty | due if run_id not in again]:
            try:
                steps[run_id] = self._step(run_id, scan, now, policy)
            except Exception as problem:  # noqa: BLE001 - it stops this run alone
                again[run_id] = failed[run_id] = self._failed_step(run_id, problem, now)
        reports = tuple(each for run_id in steps for each in self._reports_of(run_id))
        changed = tuple(
            each.run
            for run_id, each in steps.items()
            if each.run is not None and each.run != self.runs[run_id]
        )
        wanted, later = dict(self._wanted), dict(self._due)
        _apply_steps(steps, wanted, later)
        actions = tuple(action for each in wanted.values() for action in each)
        times = [each.again_at for each in again.values()]
        times += [at for run_id, at in later.items() if run_id not in again]
        times += [
            at for run_id, at in reported.items() if run_id not in steps.keys() | again.keys()
        ]
        observed = frozenset(run_id for run_id in steps if self._all_answer(run_id, scan.listing))
        due_at = min(times, default=None)
        return Outcome(changed, actions, due_at, reports, steps, failed, observed)

    def _all_answer(self, run_id: RunId, listing: Listing) -> bool:
        run = self.runs.get(run_id)
        return run is not None and (
            run_id in self.observed
            or all(answers(place.node_id, listing) for place in run.placements)
        )

    def _failed_step(self, run_id: RunId, problem: Exception, now: datetime) -> FailedStep:
        before = self._failed.get(run_id)
        failures = before.failures if before is not None else 0
        pause_s = min(RETRY_SECONDS_MAX, RETRY_SECONDS_FIRST * 2.0 ** min(failures, 16))
        return FailedStep(problem, failures + 1, now + timedelta(seconds=pause_s))

    def _noted_at(self, run_id: RunId) -> datetime:
        """When the reports about a run are noted."""
        run = self.runs.get(run_id)
        seconds = REPORTS_SECONDS_FOR_EACH * len(run.placements) if run is not None else 0.0
        first = next(iter(self._reports[run_id].values()))
        return first.reported_at + timedelta(seconds=max(REPORTS_SECONDS_MIN, seconds))

    def _reports_of(self, run_id: RunId) -> Iterable[ReadyReport]:
        return self._reports.get(run_id, {}).values()

    def commit(self, outcome: Outcome) -> None:
        """Store the outcome of a committed round."""
        _apply_steps(outcome.steps, self._wanted, self._due)
        for run_id in outcome.steps:
            self._failed.pop(run_id, None)
        self._failed |= outcome.failed
        # Not runs that this very round has forgotten.
        self.observed |= outcome.observed & self.runs.keys()

    def _step(self, run_id: RunId, scan: Scan, now: datetime, policy: Policy) -> Step:
        run, observed = self.runs.get(run_id), scan.listing.runs.get(run_id)
        if run is None:
            return step_orphan(None if run_id in self._unreadable else observed)
        attempts = [self.runs[other] for other in self._of_task[run.task_id].values()]
        sight = RunView(
            scan=scan,
            observed=observed or NOTHING,
            listed=observed or NOTHING,
            must_wait=any(other.attempt < run.attempt and other.state in LIVE for other in attempts)
            or any(
                other.task_id == run.task_id and other.attempt < run.attempt
                for other in self._unreadable
            ),
            superseded=any(
                other.attempt > run.attempt and other.state is not RunState.EARLY_REQUEST
                for other in attempts
            ),
            is_new=run_id not in self.observed,
            reported=frozenset((each.rank, each.restarts) for each in self._reports_of(run_id)),
        )
        return step(run, sight, now, policy)


def _apply_steps(
    steps: Mapping[RunId, Step],
    wanted: dict[RunId, tuple[Action, ...]],
    due: dict[RunId, datetime],
) -> None:
    """Replace the former actions and due times of the stepped runs."""
    for run_id, each in steps.items():
        wanted.pop(run_id, None)
        due.pop(run_id, None)
        if each.actions:
            wanted[run_id] = each.actions
        if each.due_at is not None:
            due[run_id] = each.due_at


def _changed_runs(before: Listing, now: Listing) -> Iterable[RunId]:
    """Runs that differ between two listings. Compares each if the runtime does not list them."""
    if now.number and now.number == before.number + 1:
        return now.changed
    gone = [run_id for run_id in before.runs if run_id not in now.runs]
    return gone + [
        run_id for run_id, observed in now.runs.items() if before.runs.get(run_id) != observed
    ]


def _changed_nodes(before: Listing, now: Listing) -> Iterator[str]:
    """Nodes that started or stopped answering."""
    gone = [node_id for node_id in before.nodes if node_id not in now.nodes]
    for node_id in (*gone, *now.nodes):
        same = before.nodes.get(node_id) is now.nodes.get(node_id)
        if not same and answers(node_id, before) != answers(node_id, now):
            yield node_id
