"""The rows that ``store.py`` keeps: tasks, nodes, limits, inventories, and the pools' ledgers.

All of them are frozen. ``facts/index.py`` builds what ``decide`` reads from them. A field has the
name of its column.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from libs.contracts.fields import SHOWN
from libs.contracts.grants import permitted
from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    ClassRetries,
    Goal,
    Placement,
    PreemptMode,
    Priority,
    Reason,
    ReasonCode,
    RunExit,
    RunMode,
    TaskSpec,
    TaskState,
    TaskStateChanged,
    Unit,
)
from libs.contracts.task_states import HOLDING, TERMINAL
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.values import NO_ORDER_KEY, OrderKey, Shape, reason, shape_of

# For rows of tasks without a time to save; submit fills the field in, and bounds it.
ACK_SECONDS_UNKNOWN = float(SHOWN["PreemptionPolicy"]["ack_deadline_seconds"].initial)


_GOAL_CODES: dict[Goal, ReasonCode] = {
    Goal.RUN: ReasonCode.GOAL_RUN,
    Goal.PAUSE: ReasonCode.GOAL_PAUSE,
    Goal.STOP: ReasonCode.GOAL_STOP,
}


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that the scheduler knows about one task that has not ended."""

    id: TaskId
    owner: str
    team: str
    spec: TaskSpec
    submitted_at: datetime
    # What the owner wants, and the last revisions of submit's facts that are applied here.
    priority: Priority
    goal: Goal = Goal.RUN
    # The owner wants the run ended at once, without time to save (pause and stop).
    goal_now: bool = False
    # Who set the goal: the owner or an administrator. Empty where an earlier version stored it.
    goal_by: str = ""
    revision: int = 0
    goal_revision: int = 0
    priority_revision: int = 0
    # The state, the reason for it, and the number of published changes.
    state: TaskState = TaskState.QUEUED
    version: int = 0
    reason: Reason = field(default_factory=lambda: reason(ReasonCode.QUEUED))
    # The level at which it counts now: its priority, or what AUTO came to for the live run.
    level: Priority = Priority.UNSPECIFIED
    # True once it fitted the known inventory: from then on it waits and is never rejected.
    accepted: bool = False
    # The last attempt, and the same number while the end of that attempt is not recorded.
    attempt: int = 0
    live_attempt: int | None = None
    placements: tuple[Placement, ...] = ()
    assigned_at: datetime | None = None
    start_deadline_at: datetime | None = None
    run_started_at: datetime | None = None
    # Whether the program of the live run has ever asked if it should leave; None: unknown.
    listens: bool | None = None
    # When a run that was requested to leave is ended by force, if its program listens.
    ack_deadline_at: datetime | None = None
    # The task for which this run was preempted; empty: none.
    preempted_for: str = ""
    preempt_requested_at: datetime | None = None
    # The nodes that are reserved for the task until all of them are observed free. For every other
    # task they count as taken.
    promised: tuple[Placement, ...] = ()
    # The order key.
    marks: OrderKey = NO_ORDER_KEY
    # How long it is expected to run in all: the owner's limit; None: unknown.
    expected_seconds: float | None = None
    # Since when it is without service, or paused, and what a move measured to cost it (seconds).
    unserved_since: datetime | None = None
    move_seconds: float | None = None
    # Why the task as a whole is being ended; None while it is not.
    end_reason: Reason | None = None
    # Over all attempts.
    first_started_at: datetime | None = None
    run_seconds: float = 0.0
    not_before_at: datetime | None = None
    retries_used: int = 0
    start_attempts: int = 0
    attempts_without_progress: int = 0
    checkpoint: Checkpoint | None = None
    # Number of the checkpoint from which the live attempt began; 0: from the beginning.
    began_from_checkpoint: int = 0
    exit: RunExit | None = None
    # Nodes on which its last starts failed, by name; empty once it has started.
    avoids: tuple[str, ...] = ()
    # Retries after failures of classes with a limit of their own, which ``retries_used`` does not
    # count; None: none so far.
    class_retries: ClassRetries | None = None
    # The runs in a row that ended soon after their start without a failure: the program handed its
    # nodes over on its own, or the owner changed the mode or paused the task.
    short_yields: int = 0
    # Its owner wants it in debug mode, and the last revision of that which is applied here.
    debug: bool = False
    mode_revision: int = 0
    # The live attempt is in debug mode.
    debugging: bool = False
    # Its last attempt in debug mode ended, and nobody has changed the goal or the mode since then.
    # The goal is a pause meanwhile.
    debug_ended: bool = False
    # The number of its attempts in debug mode, and how long those that have ended ran.
    debug_attempts: int = 0
    debug_seconds: float = 0.0

    @property
    def group(self) -> str:
        """The node group in which it runs."""
        return self.spec.group

    @property
    def shape(self) -> Shape:
        """What it needs of the cluster."""
        return shape_of(self.spec, self.avoids)

    @property
    def is_auto(self) -> bool:
        """True if the scheduler chooses the task's level."""
        return self.priority in (Priority.AUTO, Priority.UNSPECIFIED)

    @property
    def holds(self) -> bool:
        """True while a run of it may have processes."""
        return self.state in HOLDING

    @property
    def held_gpus(self) -> int:
        """The number of GPUs that its live run holds."""
        return sum(len(placement.gpus) for placement in self.placements)

    @property
    def preempt_mode(self) -> PreemptMode:
        """How its live run is requested to leave; by default through the SDK. A debug program has
        nothing to save."""
        if self.debugging:
            return PreemptMode.KILL
        mode = self.spec.preemption.mode
        return PreemptMode.SDK if mode is PreemptMode.UNSPECIFIED else mode

    @property
    def is_silent(self) -> bool:
        """True if its live run should ask whether to leave, and never did: it cannot save."""
        return self.listens is False and self.preempt_mode is PreemptMode.SDK

    @property
    def ends_now(self) -> bool:
        """True if its run is to be ended without time to save."""
        return self.goal_now and self.goal is not Goal.RUN

    @property
    def changes_mode(self) -> bool:
        """True if its live run is not in the mode that its owner wants, and is not leaving yet."""
        runs = self.state in (TaskState.STARTING, TaskState.RUNNING)
        return runs and self.goal is Goal.RUN and self.debugging is not self.debug

    @property
    def _continues_checkpoint(self) -> bool:
        before = self.spec.continues
        return before is not None and before.checkpoint is not None

    @property
    def spec_of_attempt(self) -> TaskSpec:
        """The specification of the live attempt: in its mode. Roles are as on the first attempt as
        long as the task's own program has never been started. One that began from a checkpoint of
        the task that it continues resumes from the first attempt on."""
        wanted = RunMode.DEBUG if self.debugging else RunMode.NORMAL
        update: dict[str, object] = {}
        if self.spec.run_mode is not wanted and (
            self.debugging or self.spec.run_mode is not RunMode.UNSPECIFIED
        ):
            update["run_mode"] = wanted
        of_program = self.attempt - self.debug_attempts + self.debugging
        first = self.attempt > 1 and of_program == 1 and not self._continues_checkpoint
        if first and any(role.resume for role in self.spec.roles):
            update["roles"] = tuple(
                role.model_copy(update={"resume": None}) for role in self.spec.roles
            )
        return self.spec.model_copy(update=update) if update else self.spec

    def run_expires_at(self, settings: PolicySettings) -> datetime | None:
        """When its live run has lasted as long as it may; None: never, or it has not started. The
        limit of the task is one of its own program, and of each attempt in debug mode."""
        if self.run_started_at is None:
            return None
        longest = self.spec.max_run_seconds
        if self.debugging:
            return self.run_started_at + timedelta(seconds=self.debug_limit(settings))
        if longest is None:
            return None
        ran = self.run_seconds - self.debug_seconds
        return self.run_started_at + timedelta(seconds=longest - ran)

    def debug_limit(self, settings: PolicySettings) -> float:
        """How long an attempt in debug mode may last (seconds)."""
        longest = self.spec.max_run_seconds
        limit = settings.debug_seconds_max
        return limit if longest is None else min(longest, limit)

    @property
    def goal_reason(self) -> Reason:
        """The reason of a move that follows its goal."""
        return reason(_GOAL_CODES[self.goal], names=self.goal_names)

    @property
    def goal_names(self) -> dict[str, str]:
        """Who set its goal, unless the owner did."""
        return {"by": self.goal_by} if self.goal_by not in ("", self.owner) else {}

    def ack_seconds(self, settings: PolicySettings) -> float:
        """How long its run may take to save and exit; a task that is to stop gets less."""
        if self.ends_now:
            return 0.0
        wanted = self.spec.preemption.ack_deadline_seconds or ACK_SECONDS_UNKNOWN
        return min(wanted, settings.stop_ack_seconds_max) if self.goal is Goal.STOP else wanted

    def forced_at(self, silent_seconds: float) -> datetime | None:
        """When a run that was requested to leave is ended by force; None: it was not requested.

        A silent run gets at most ``silent_seconds``, until it asks for the first time.
        """
        at, requested_at = self.ack_deadline_at, self.preempt_requested_at
        if at is None or requested_at is None or not self.is_silent:
            return at
        return min(at, requested_at + timedelta(seconds=silent_seconds))

    def silent_deadline_at(self, silent_seconds: float) -> datetime | None:
        """When a silent run that was requested to leave is ended early; None: at its deadline."""
        at = self.forced_at(silent_seconds)
        return None if at == self.ack_deadline_at else at

    def same_holdings(self, other: Task | None) -> bool:
        """True if both have the same nodes and count for the same limits."""
        return (
            other is not None
            and other.state not in TERMINAL
            and self.placements is other.placements
            and self.promised is other.promised
            and self.level is other.level
        )

    def waits_unchanged(self, new: Task) -> bool:
        """True if the new row of this waiting task changes nothing that a round evaluates."""
        return (
            self.state is new.state
            and self.priority is new.priority
            and self.marks is new.marks
            and self.not_before_at == new.not_before_at
            and not self.promised
        )


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the launcher last described it; a removed one is kept for its version."""

    id: NodeId
    version: int
    group: str
    gpus: int
    cpus: float = 0.0
    memory_bytes: int = 0
    schedulable: bool = True
    ready: bool = True
    unusable_gpus: tuple[int, ...] = ()
    # Its runs are requested to save and leave.
    draining: bool = False
    removed: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    # ``key`` or ``key=value``: only runs that tolerate it start here.
    taints: tuple[str, ...] = ()
    # When this was recorded; None: the row is older than this field. No decision depends on it.
    changed_at: datetime | None = field(default=None, compare=False)

    @property
    def offered(self) -> bool:
        """True if new runs may be placed on it."""
        return self.ready and self.schedulable and not self.draining and not self.removed

    def same_place(self, other: Node) -> bool:
        """True if both descriptions differ only in the node's state and its amounts.

        A node that begins or ceases to report its CPUs or memory is another place.
        """
        reports = (self.cpus > 0) == (other.cpus > 0) and (
            (self.memory_bytes > 0) == (other.memory_bytes > 0)
        )
        return reports and self._place() == other._place()

    def _place(self) -> Node:
        return replace(
            self,
            version=0,
            ready=True,
            schedulable=True,
            draining=False,
            unusable_gpus=(),
            cpus=0.0,
            memory_bytes=0,
        )

    def same_state(self, other: Node) -> bool:
        """True if both descriptions let the same runs start and stay on the node."""
        return self._state() == other._state()

    def _state(self) -> tuple[object, ...]:
        return self.offered, self.draining, self.unusable_gpus, self.cpus, self.memory_bytes


# Group, user, team, priority (empty: all), and whether it is a grant.
LimitKey: TypeAlias = tuple[str, str, str, Priority, bool]


@dataclass(frozen=True, slots=True)
class Limit:
    """One quota row: a cap, or a grant.

    A cap with neither user nor team counts each user separately, with a team alone the team as a
    whole. An empty group or priority counts all groups or levels together.

    A grant counts each user separately and in each group separately, at the levels that it decides
    (``libs/contracts/grants.py``).
    """

    group: str
    user: str
    team: str
    priority: Priority
    unit: Unit
    limit: int
    version: int = 0
    removed: bool = False
    grant: bool = False
    # A grant without a number.
    unlimited: bool = False
    # Of the site's default: no level above it is permitted; UNSPECIFIED: all are.
    level_max: Priority = Priority.UNSPECIFIED
    # When quota removes the row. Nothing here depends on it; ``explain`` shows it.
    expires_at: datetime | None = None
    # When the row came; None: before this was recorded.
    changed_at: datetime | None = None

    @property
    def key(self) -> LimitKey:
        """What the row is about; each key has one row, in one unit."""
        return (self.group, self.user, self.team, self.priority, self.grant)

    @property
    def forbids(self) -> bool:
        """True for a grant of nothing, which does not permit tasks without GPUs either."""
        return self.grant and not self.unlimited and self.limit == 0

    def at(self, level: Priority) -> Limit | None:
        """What the row says about a level; None: it does not limit it."""
        if not self.grant:
            return self
        amount = permitted(self, level)
        if amount is None:
            return None
        if not self.unlimited and amount == self.limit:
            return self
        return replace(self, limit=amount, unlimited=False)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The last full list of nodes of one runtime."""

    runtime: str
    node_ids: tuple[str, ...]
    listed_at: datetime
    version: int = 0


@dataclass(frozen=True, slots=True)
class PoolLedger:
    """The accounts of a pool's discipline; a row that is rarely written."""

    group: str
    # Node-seconds that preemptions inside a level and starvation grants may cost, as counted at
    # these times; None: never counted.
    tokens: float = 0.0
    tokens_at: datetime | None = None
    grants: float = 0.0
    grants_at: datetime | None = None
    # The load: the smoothed mean age of live work, and the load scale that follows from it.
    load: float = 0.0
    sampled_at: datetime | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that has ended: its last published state, and what the statistics learn from it."""

    task_id: str
    ended_at: datetime
    last: TaskStateChanged
    run_seconds: float = 0.0

    @property
    def by_itself(self) -> bool:
        """True if the program ended by itself, so that its running time is meaningful."""
        return self.last.state in (TaskState.SUCCEEDED, TaskState.FAILED)


@dataclass(frozen=True, slots=True)
class EarlyFacts:
    """Submit's facts about a task whose submission has not arrived yet; a revision of 0: none."""

    task_id: TaskId
    goal: Goal = Goal.RUN
    goal_now: bool = False
    goal_by: str = ""
    goal_revision: int = 0
    priority: Priority = Priority.UNSPECIFIED
    priority_revision: int = 0
    debug: bool = False
    mode_revision: int = 0
    # When the first of them arrived.
    first_at: datetime | None = None
