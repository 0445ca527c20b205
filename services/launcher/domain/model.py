"""The launcher's values: rows of runs, checkpoints, ports and nodes, and what a runtime observes.
Used by every module of this service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    Fault,
    Node,
    Placement,
    RankExit,
    RunExit,
    RunMode,
    TaskSpec,
)


class RunState(StrEnum):
    """The state of a run; only ``run_lifecycle.TRANSITIONS`` changes it."""

    # A request arrived before its assignment. The stored value is older than this name.
    EARLY_REQUEST = "tombstone"
    # To be launched; some ranks may exist already.
    ASSIGNED = "assigned"
    # The process of every rank that waits for no other one exists or existed.
    RUNNING = "running"
    # Its processes are being ended by us.
    ENDING = "ending"
    # The end is recorded and published; the runtime may still hold records of it.
    EXITED = "exited"
    # Nothing of it is left in the runtime; a ``PastRun`` replaces the row.
    FORGOTTEN = "forgotten"


class EndCause(StrEnum):
    """Why the launcher ended a run's processes; the first cause stays."""

    KILL = "kill"
    # A rule for success is met; what is left of the gang is ended.
    SUCCEEDED = "succeeded"
    GRACE_OVER = "grace_over"
    RANK_FAILED = "rank_failed"
    RANK_LOST = "rank_lost"
    PREEMPTED_BEFORE_START = "preempted_before_start"
    SUPERSEDED = "superseded"
    # It can never start as ordered, by the task's fault or by the site's. The stored value of the
    # second one is older than its name.
    CANNOT_START = "cannot_start"
    REJECTED_BY_SITE = "turned_away"


@dataclass(frozen=True, slots=True)
class RankRestart:
    """The last restart of one rank in its place."""

    rank: int
    # How often it was restarted, which is the number of its process.
    count: int
    # Its process does not start before this time.
    not_before: datetime
    # How its former process ended.
    detail: str = ""


# For a run without the times of an assignment.
START_SECONDS = 300.0


def ordered_after(now: datetime, *earlier: datetime | None) -> datetime:
    """``now``, or just after the latest of what happened earlier. Times of one row are compared to
    tell which came first, and clocks of different leaders may be hours apart."""
    return max([now, *(at + timedelta(microseconds=1) for at in earlier if at is not None)])


@dataclass(frozen=True, slots=True)
class RoleStart:
    """How far the start of one role of an ordered run has come, by the launcher's clock."""

    role: str
    # Since when nothing that it waits for is missing. None for a role that waits for nothing.
    may_since: datetime | None = None
    # Since when each of its ranks exists: a rank that is not listed after that has vanished.
    exists_since: datetime | None = None
    # Since when each of its ranks runs that has to be ready and is not. Only of a role for whose
    # readiness another one waits.
    warms_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReportedDelay:
    """The last report about a run's delay."""

    ranks: int
    detail: str
    # Its time as published: a later report has a later one.
    at: datetime
    # The run had started.
    running: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of one task (row; key: task_id, attempt).

    The handlers write requests and the loop writes observations, both inside the leader's
    transactions, which take turns.
    """

    task_id: str
    attempt: int
    state: RunState
    owner: str = ""
    # None on an early request.
    spec: TaskSpec | None = None
    placements: tuple[Placement, ...] = ()
    resume_from: Checkpoint | None = None
    start_deadline_at: datetime | None = None
    assigned_at: datetime | None = None
    preempt_requested_at: datetime | None = None
    preempt_deadline_at: datetime | None = None
    kill_requested_at: datetime | None = None
    # The first checkpoint stored after the request for preemption.
    acked_at: datetime | None = None
    # When the runtime sent the preemption signal (signal mode).
    signalled_at: datetime | None = None
    ending_at: datetime | None = None
    end_cause: EndCause | None = None
    # What was known when the launcher decided to end it: a runtime may forget it.
    end_note: str = ""
    started_at: datetime | None = None
    exited_at: datetime | None = None
    exit: RunExit | None = None
    # The owner's team at submission.
    team: str = ""
    # Where it could not start: nodes that refused its ranks, lost them before they began, or had
    # not begun them at the start deadline.
    failed_nodes: tuple[str, ...] = ()
    # A kill was requested because its start took too long.
    start_expired: bool = False
    # The ranks that have been ready, as far as other roles waited for that.
    ready_ranks: tuple[int, ...] = ()
    # The ranks that were started again in their places, by number.
    restarts: tuple[RankRestart, ...] = ()
    # The rank whose failure made the launcher end it, and what was wrong with its launch: a runtime
    # may forget both before the end is recorded.
    end_rank: RankExit | None = None
    end_fault: Fault | None = None
    # Its program handed the nodes over on its own, and why, in the program's words.
    yield_requested_at: datetime | None = None
    yield_reason: str = ""
    # In debug mode: the ranks whose end is published while the others go on.
    ended_ranks: tuple[RankExit, ...] = ()
    # Its owner wants it to end at once.
    kill_now: bool = False
    # Of a run whose roles start in order, what of each is known. Empty before the first scan, and
    # of a run that an earlier version launched as a whole.
    role_starts: tuple[RoleStart, ...] = ()
    # What was published last about its delay; None: nothing.
    delay: ReportedDelay | None = None

    @property
    def id(self) -> RunId:
        """The run's derived name, the same in every store and runtime."""
        return RunId(TaskId(self.task_id), self.attempt)

    @property
    def leading_rank(self) -> int:
        """The rank that saves and acknowledges for the gang: the lowest one, which is 0."""
        return min((place.rank for place in self.placements), default=0)

    @property
    def start_limit(self) -> timedelta:
        """The site's limit for a start, which the scheduler applies to the roles that wait for
        nothing (``start_deadline_seconds``), for each later role and each restart in place."""
        if self.start_deadline_at is None or self.assigned_at is None:
            return timedelta(seconds=START_SECONDS)
        return self.start_deadline_at - self.assigned_at

    @property
    def debugs(self) -> bool:
        """Whether it is in debug mode: the ends of its ranks decide nothing, until none is left."""
        return self.spec is not None and self.spec.run_mode is RunMode.DEBUG

    @property
    def is_leaving(self) -> bool:
        """Whether it was requested to leave, leaves on its own, or is to be killed: nothing of it
        starts any more."""
        requests = (self.preempt_requested_at, self.yield_requested_at, self.kill_requested_at)
        return any(at is not None for at in requests)

    @property
    def leaves_since(self) -> datetime | None:
        """Since when it has nothing left to do but exit: its acknowledgement, or its own wish."""
        since = [at for at in (self.acked_at, self.yield_requested_at) if at is not None]
        return min(since, default=None)


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """A program's report that it is ready (row; key: task_id, attempt, rank). The next round adds
    it to the run's row together with the others, and deletes it."""

    task_id: str
    attempt: int
    rank: int
    # How often the rank had been restarted in place when the reporting process began.
    restarts: int
    reported_at: datetime


@dataclass(frozen=True, slots=True)
class PastRun:
    """The newest attempt of a task that is over and forgotten (row; key: task_id)."""

    task_id: str
    attempt: int
    placements: tuple[Placement, ...]
    started_at: datetime | None
    exit: RunExit
    # The task's last checkpoint at that time, as in its RunExited.
    checkpoint: Checkpoint | None
    forgotten_at: datetime
    # Output of pods may be collected later, and the task's secrets are masked in it. None for runs
    # that a version without this forgot.
    spec: TaskSpec | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One accepted checkpoint (row; key: task_id, no)."""

    task_id: str
    no: int
    attempt: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class LifeStateRow:
    """What is known of a task's life state (row; key: task_id). It stays as long as the task's last
    run is remembered."""

    task_id: str
    # Counts the states that the task saved, from 1.
    version: int
    attempt: int
    media_type: str
    # In bytes.
    size: int
    saved_at: datetime


@dataclass(frozen=True, slots=True)
class LifeStateContent:
    """The content of a life state (row; key: task_id), apart because it may be large. It is written
    together with its ``LifeStateRow``."""

    task_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PortLease:
    """A port held for a rank of a run until the run is forgotten (row; key: port)."""

    port: int
    task_id: str
    attempt: int
    rank: int = 0
    # As the rank's role declares it; empty: the port of the task's contract.
    name: str = ""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node of the inventory (row; key: node_id)."""

    node_id: str
    # Grows with each published change of the node.
    version: int
    node: Node
    removed: bool
    # Set by an operator; the node's own state is in ``node``.
    cordoned: bool
    changed_at: datetime
    # Since when the node does not answer; None while it does.
    silent_since: datetime | None = None
    # What operators added to the runtime's own labels and taints; ``node`` has both.
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[str, ...] = ()
    # The runtime itself allows no new run on it, independently of operators.
    closed: bool = False
    # Starts that failed here in a row, the task of the last of them, and until when no new run
    # comes for that reason.
    failed_starts: int = 0
    failed_task: str = ""
    quarantined_until: datetime | None = None
    # The owner of that task.
    failed_owner: str = ""


class RankState(StrEnum):
    """The observed state of a rank's process."""

    # Ordered, but no process of it exists yet; ``note`` has the reason.
    PENDING = "pending"
    RUNNING = "running"
    # Ended, with everything it started: code or signal is known.
    EXITED = "exited"
    # Certainly gone; how it ended is not known.
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ObservedRank:
    """One rank as a runtime sees it. ``EXITED`` and ``LOST`` mean: no process of it is left."""

    rank: int
    node_id: str
    state: RankState
    code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    exited_at: datetime | None = None
    # A clause about the end or the wait, if the runtime knows more than the code.
    note: str = ""
    fault: Fault | None = None
    # Since when a rank that is pending has this fault.
    fault_since: datetime | None = None
    # How often it had been restarted in place when this process was ordered.
    start: int = 0
    # The runtime itself probes its readiness, and finds it ready.
    ready: bool = False
    # The end of the note, if the program wrote it; it may be the end alone of what that wrote.
    words: str = ""

    @property
    def over(self) -> bool:
        """Whether no process of it is left and none will begin."""
        return self.state in (RankState.EXITED, RankState.LOST)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """One run as a runtime sees it; ranks that it knows nothing about are absent."""

    run_id: RunId
    ranks: Mapping[int, ObservedRank]
    # Nodes that have a record of it (also those on which it was ended before it began).
    node_ids: frozenset[str] = frozenset()
    # No silent node hides anything of it.
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a runtime will never launch a run as it was ordered."""

    fault: Fault
    # One sentence for people.
    text: str


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """One node as a runtime sees it. ``node.ready`` is True if it answers now."""

    node: Node
    # Why it does not answer, or why it takes no new runs although nobody closed it.
    problem: str = ""
    # No longer in the inventory; it only finishes what runs there.
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One full scan of a runtime. What is absent on a node that answers does not exist there."""

    nodes: Mapping[str, ObservedNode] = field(default_factory=dict[str, ObservedNode])
    runs: Mapping[RunId, ObservedRun] = field(default_factory=dict[RunId, ObservedRun])
    # A runtime that tracks changes counts its scans from 1, and lists every run that may differ
    # from the scan before.
    number: int = field(default=0, compare=False)
    changed: tuple[RunId, ...] = field(default=(), compare=False)
