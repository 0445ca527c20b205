"""The nouns of scheduling: tasks, nodes, limits, settings, decisions and the plan.

All values are frozen; ``Task``, ``Node``, ``Limit`` and ``Inventory`` are also the rows that
``store.py`` keeps. The snapshot that ``decide`` reads is built from them in ``snapshot.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    Checkpoint,
    Goal,
    Placement,
    PreemptMode,
    Priority,
    Reason,
    ReasonCode,
    RunExit,
    TaskSpec,
    TaskState,
    Unit,
)
from services.scheduler.domain.lifecycle import HOLDING, Trigger
from services.scheduler.domain.marks import UNMARKED, Marks, PoolBook
from services.scheduler.domain.why import reason

WEIGHTS: Mapping[Priority, int] = MappingProxyType(
    {
        Priority.EXTREME_HIGH: 50,
        Priority.VERY_HIGH: 40,
        Priority.HIGH: 30,
        Priority.ABOVE_NORMAL: 20,
        Priority.NORMAL: 10,
        Priority.BELOW_NORMAL: 8,
        Priority.LOW: 5,
        Priority.IDLE: 0,
        Priority.AUTO: -1,
        Priority.UNSPECIFIED: -1,
    }
)


SHAPES_KEPT_MAX = 65_536


class Each(NamedTuple):
    """What each rank of a gang takes of its node beside GPUs."""

    # Thousandths of a CPU.
    cpus: int = 0
    memory_bytes: int = 0


NOTHING = Each()


class Shape(NamedTuple):
    """What a task asks of the cluster; tasks of one shape are interchangeable for placement."""

    group: str
    nodes: int
    # GPUs on each node; None = whole nodes, 0 = CPU only.
    gpus: int | None
    cpus: float
    memory_bytes: int
    # Labels its nodes must have, and taints it does not mind (``key`` or ``key=value``).
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    # Nodes that it does not take while others could hold it: starts of this task failed there.
    avoids: tuple[str, ...] = ()

    @property
    def each(self) -> Each:
        """What each rank takes of its node beside GPUs."""
        if not self.cpus and not self.memory_bytes:
            return NOTHING
        return Each(thousandths(self.cpus), self.memory_bytes)


def thousandths(cpus: float) -> int:
    """CPUs in thousandths, as Kubernetes counts them; more than none is at least one."""
    return max(1, round(cpus * 1000)) if cpus > 0 else 0


@lru_cache(maxsize=SHAPES_KEPT_MAX)
def _shape(*fields: Any) -> Shape:  # noqa: ANN401 - those of Shape
    """Equal shapes are one object, so that comparing them is cheap."""
    return Shape(*fields)


def shape_of(spec: TaskSpec, avoids: tuple[str, ...] = ()) -> Shape:
    """What a task of this specification asks of the cluster."""
    return _shape(
        spec.group,
        spec.nodes,
        spec.gpus_per_node,
        spec.cpus or 0.0,
        spec.memory_bytes or 0,
        tuple(sorted(spec.node_selector.items())) if spec.node_selector else (),
        tuple(sorted(set(spec.tolerations))) if spec.tolerations else (),
        avoids,
    )


@dataclass(frozen=True, slots=True)
class Task:
    """Everything the scheduler knows about one task that has not ended."""

    id: TaskId
    owner: str
    team: str
    spec: TaskSpec
    submitted_at: datetime
    # What the owner wants, and the last revisions of submit's facts applied here.
    priority: Priority
    goal: Goal = Goal.RUN
    # The owner wants its run ended at once, without being asked to save (pause and stop).
    goal_now: bool = False
    revision: int = 0
    goal_revision: int = 0
    priority_revision: int = 0
    # Where it stands, why, and how often that was told.
    state: TaskState = TaskState.QUEUED
    version: int = 0
    reason: Reason = field(default_factory=lambda: reason(ReasonCode.QUEUED))
    # The level it counts as now: its priority, or what AUTO came to for the live run.
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
    # Whether the program of the live run has ever asked if it should leave; None: nobody knows.
    listens: bool | None = None
    # When a run that is asked to go is ended, if its program listens.
    ack_deadline_at: datetime | None = None
    # The task this run was asked to make room for; empty: none.
    preempted_for: str = ""
    preempt_requested_at: datetime | None = None
    # What is kept for it until all of it is observed free; taken for everybody else.
    promised: tuple[Placement, ...] = ()
    marks: Marks = UNMARKED
    # What it may be expected to run in all: the owner's limit; None: nobody knows.
    expected_seconds: float | None = None
    # Since when it goes without service, or is paused; and what being moved costs it, if it ever
    # was (seconds).
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
    # Number of the checkpoint the live attempt began from; 0: from the beginning.
    began_from_checkpoint: int = 0
    exit: RunExit | None = None
    # Nodes on which its last starts failed, in order of their names; empty once it has started.
    avoids: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The node group it runs in."""
        return self.spec.group

    @property
    def shape(self) -> Shape:
        """What it asks of the cluster."""
        return shape_of(self.spec, self.avoids)

    @property
    def holds(self) -> bool:
        """True while a run of it may have processes."""
        return self.state in HOLDING

    @property
    def held_gpus(self) -> int:
        """GPUs its live run holds."""
        return sum(len(placement.gpus) for placement in self.placements)

    @property
    def preempt_mode(self) -> PreemptMode:
        """How its runs are asked to go; the SDK unless said otherwise."""
        mode = self.spec.preemption.mode
        return PreemptMode.SDK if mode is PreemptMode.UNSPECIFIED else mode

    @property
    def is_silent(self) -> bool:
        """True if its live run would have to ask whether to go, and never did: it cannot save."""
        return self.listens is False and self.preempt_mode is PreemptMode.SDK

    @property
    def ends_now(self) -> bool:
        """True if its run is to be ended without being asked to save."""
        return self.goal_now and self.goal is not Goal.RUN

    def gone_by(self, silent_seconds: float) -> datetime | None:
        """When a run that was asked to go is ended by force; a silent one gets ``silent_seconds``
        at most, until it is heard of. None: it was not asked."""
        at, asked_at = self.ack_deadline_at, self.preempt_requested_at
        if at is None or asked_at is None or not self.is_silent:
            return at
        return min(at, asked_at + timedelta(seconds=silent_seconds))

    def silent_deadline_at(self, silent_seconds: float) -> datetime | None:
        """When a run that was asked to go and cannot hear it is ended before its deadline; None if
        it has the whole of that."""
        at = self.gone_by(silent_seconds)
        return None if at == self.ack_deadline_at else at


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
    # What runs here is asked to save and leave.
    draining: bool = False
    removed: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    # ``key`` or ``key=value``: no new runs but those that tolerate it.
    taints: tuple[str, ...] = ()
    # When this was recorded; None: before this was noted. No decision depends on it.
    changed_at: datetime | None = field(default=None, compare=False)

    @property
    def offered(self) -> bool:
        """True if new runs may be placed on it."""
        return self.ready and self.schedulable and not self.draining and not self.removed


# Group, user, team, priority; empty = every.
LimitKey: TypeAlias = tuple[str, str, str, Priority]


@dataclass(frozen=True, slots=True)
class Limit:
    """One quota row. Empty user and team: each user by themselves; team alone: the team as a whole.

    An empty group or priority counts all groups or levels together.
    """

    group: str
    user: str
    team: str
    priority: Priority
    unit: Unit
    limit: int
    version: int = 0
    removed: bool = False

    @property
    def key(self) -> LimitKey:
        """What the row is about; there is one row for each, in one unit."""
        return (self.group, self.user, self.team, self.priority)


@dataclass(frozen=True, slots=True)
class Inventory:
    """One runtime's last full list of nodes."""

    runtime: str
    node_ids: tuple[str, ...]
    listed_at: datetime
    version: int = 0


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The numbers of the policy; seconds unless said otherwise."""

    # The discipline of groups without a policy of their own.
    policy: str = "timeshare"
    start_deadline_seconds: float = 300.0
    start_attempts_max: int = 5
    # A run is not preempted before it ran so long.
    protected_seconds: float = 0.0
    retry_delay_seconds: float = 10.0
    retry_delay_seconds_max: float = 600.0
    ack_deadline_seconds_default: float = 60.0
    ack_deadline_seconds_max: float = 3600.0
    # A task that is to stop gets no more than this to save.
    stop_ack_seconds_max: float = 30.0
    # A run whose program never asked whether it should leave gets no more than this.
    silent_ack_seconds_max: float = 5.0
    # CPU-only ranks on one node: as many as it has CPUs, this many where that is not known.
    cpu_ranks_per_node: int = 16
    # AUTO rises above this only to a level that a limit names together with the owner or the
    # team; limits for each user only lower it.
    auto_level_max: Priority = Priority.NORMAL
    # From so many attempts in a row without a newer checkpoint, the owner is warned.
    no_progress_attempts: int = 3


@dataclass(frozen=True, slots=True)
class Assign:
    """Start an attempt of a queued task on these nodes and GPUs."""

    task_id: TaskId
    attempt: int
    level: Priority
    placements: tuple[Placement, ...]
    start_deadline_at: datetime
    resume_from: Checkpoint | None
    reason: Reason
    marks: Marks = UNMARKED
    kind: str = field(default="assign", init=False)
    trigger: Trigger = field(default=Trigger.ASSIGN, init=False)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Ask a running attempt to save a checkpoint and go, at the latest at the deadline."""

    task_id: TaskId
    attempt: int
    reason: Reason
    deadline_at: datetime
    beneficiary: str = ""
    end_reason: Reason | None = None
    # Where there is a place for it, if it is only to move.
    moves_to: tuple[Placement, ...] = ()
    # When it is ended instead if it never asks whether to go; None: it did, or is not to ask.
    silent_deadline_at: datetime | None = None
    kind: str = field(default="preempt", init=False)
    trigger: Trigger = field(default=Trigger.PREEMPT, init=False)


@dataclass(frozen=True, slots=True)
class Kill:
    """End an attempt by force: nothing to save, or it was asked and did not go."""

    task_id: TaskId
    attempt: int
    reason: Reason
    trigger: Trigger = Trigger.KILL
    beneficiary: str = ""
    end_reason: Reason | None = None
    moves_to: tuple[Placement, ...] = ()
    kind: str = field(default="kill", init=False)


@dataclass(frozen=True, slots=True)
class Reject:
    """End a queued task that no known node set could ever hold."""

    task_id: TaskId
    reason: Reason
    kind: str = field(default="reject", init=False)
    trigger: Trigger = field(default=Trigger.REJECT, init=False)


@dataclass(frozen=True, slots=True)
class Move:
    """Follow the owner's goal with a task that has no run: pause, resume or stop."""

    task_id: TaskId
    trigger: Trigger
    reason: Reason
    kind: str = field(default="move", init=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave a queued task waiting, for another reason than the one that is stored."""

    task_id: TaskId
    reason: Reason
    accepted: bool
    marks: Marks | None = None
    # What is kept for it from now on, and the level it counts at then; None: as before.
    promised: tuple[Placement, ...] | None = None
    level: Priority | None = None
    # It is not tried before; None: as before.
    not_before_at: datetime | None = None
    kind: str = field(default="hold", init=False)


@dataclass(frozen=True, slots=True)
class Mark:
    """Note a new place in the order for a run: its slice ended, or its level sinks."""

    task_id: TaskId
    reason: Reason
    marks: Marks
    level: Priority = Priority.UNSPECIFIED
    kind: str = field(default="mark", init=False)


Decision: TypeAlias = Assign | Preempt | Kill | Reject | Move | Hold | Mark


class Look(NamedTuple):
    """What a round noted of a pool it looked at."""

    # When time alone makes the next look necessary; and the last pass over its runs.
    due_at: datetime | None
    passed_at: datetime | None
    # Runs that a quota keeps from the level that they should count at.
    unlevelled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, and why each queued task that is left waits."""

    version: int
    decided_at: datetime
    decisions: tuple[Decision, ...]
    # The reason for each queued task that was looked at.
    explanations: Mapping[str, Reason]
    books: tuple[PoolBook, ...] = ()
    # The pools that were looked at.
    looks: Mapping[str, Look] = field(default_factory=lambda: MappingProxyType({}))
    # The next moment at which time alone changes the answer; None: never.
    due_at: datetime | None = None
    # So many of the decisions, the first ones, do not share anything out: deadlines that passed,
    # goals of owners, nodes that are drained.
    urgent: int = 0
    # Groups, and single tasks, about which nothing is decided: deciding or checking it failed, or
    # the check took the decisions out.
    left_out: frozenset[str] = frozenset()
    left_out_tasks: frozenset[str] = frozenset()
