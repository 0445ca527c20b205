"""Decisions about tasks, and the plan: what ``decide`` returns and ``store.py`` commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from libs.contracts.ids import TaskId
from libs.contracts.messages import Checkpoint, Placement, Priority, Reason
from services.scheduler.domain.model.lifecycle import Trigger
from services.scheduler.domain.model.rows import PoolLedger
from services.scheduler.domain.model.values import NO_ORDER_KEY, OrderKey


@dataclass(frozen=True, slots=True)
class Assign:
    """Starts an attempt of a queued task on these nodes and GPUs."""

    task_id: TaskId
    attempt: int
    level: Priority
    placements: tuple[Placement, ...]
    start_deadline_at: datetime
    resume_from: Checkpoint | None
    reason: Reason
    order_key: OrderKey = NO_ORDER_KEY
    kind: str = field(default="assign", init=False)
    trigger: Trigger = field(default=Trigger.ASSIGN, init=False)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Requests that a running attempt saves a checkpoint and exits before the deadline."""

    task_id: TaskId
    attempt: int
    reason: Reason
    deadline_at: datetime
    beneficiary: str = ""
    end_reason: Reason | None = None
    # The free place that was found for it, if it is only moved.
    moves_to: tuple[Placement, ...] = ()
    # When the run is ended if it never asks whether to leave; None: it did, or need not ask.
    silent_deadline_at: datetime | None = None
    kind: str = field(default="preempt", init=False)
    trigger: Trigger = field(default=Trigger.PREEMPT, init=False)


@dataclass(frozen=True, slots=True)
class Kill:
    """Ends an attempt by force: it has nothing to save, or it did not exit in time."""

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
    """Ends a queued task that no known set of nodes could hold."""

    task_id: TaskId
    reason: Reason
    kind: str = field(default="reject", init=False)
    trigger: Trigger = field(default=Trigger.REJECT, init=False)


@dataclass(frozen=True, slots=True)
class Move:
    """Applies the owner's goal to a task that has no run: pause, resume or stop."""

    task_id: TaskId
    trigger: Trigger
    reason: Reason
    kind: str = field(default="move", init=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """Leaves a queued task waiting, and changes why, or what is reserved for it."""

    task_id: TaskId
    reason: Reason
    accepted: bool
    order_key: OrderKey | None = None
    # What is reserved for it from now on, and the level at which it counts then; None: unchanged.
    reserved: tuple[Placement, ...] | None = None
    level: Priority | None = None
    # The task is not tried before this time; None: unchanged.
    not_before_at: datetime | None = None
    kind: str = field(default="hold", init=False)


@dataclass(frozen=True, slots=True)
class Reorder:
    """Changes a run's place in the order: its slice ended, or its level changed."""

    task_id: TaskId
    reason: Reason
    order_key: OrderKey
    level: Priority = Priority.UNSPECIFIED
    # The name in the history of decisions.
    kind: str = field(default="mark", init=False)


Decision: TypeAlias = Assign | Preempt | Kill | Reject | Move | Hold | Reorder


class PoolScan(NamedTuple):
    """What a round notes about a pool that it evaluated."""

    # When time alone requires the next evaluation, and when waiting tasks last preempted runs of
    # their own level.
    due_at: datetime | None
    slice_round_at: datetime | None
    # Runs that a quota keeps from the level at which they should count.
    level_blocked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of one round, in order, and why each queued task that is left waits."""

    version: int
    decided_at: datetime
    decisions: tuple[Decision, ...]
    # The reason for each queued task that was evaluated.
    explanations: Mapping[str, Reason]
    ledgers: tuple[PoolLedger, ...] = ()
    # The pools that were evaluated.
    scans: Mapping[str, PoolScan] = field(default_factory=lambda: MappingProxyType({}))
    # The next moment at which time alone changes the plan; None: never.
    due_at: datetime | None = None
    # The number of urgent decisions, which come first: expired deadlines, goals, drained nodes.
    # They give nodes to no task.
    urgent: int = 0
    # Groups and tasks about which nothing is decided: deciding or checking failed, or the check
    # removed the decisions.
    left_out: frozenset[str] = frozenset()
    left_out_tasks: frozenset[str] = frozenset()
