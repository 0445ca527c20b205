"""The scheduler's schema, ``scheduler``: one table class for each row of the domain and store.

The database refuses what must never be, whoever asks: a GPU with two owners (``slot``), a live
attempt that is not the last, a run that holds nothing or a waiting task that holds something.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from libs.contracts.messages import (
    Checkpoint,
    Goal,
    Placement,
    Priority,
    Reason,
    RunExit,
    TaskSpec,
    TaskState,
    TaskStateChanged,
    Unit,
)
from libs.store.columns import enum_column, json_column, key_column, time_column
from libs.store.tables import Tables, rule, table_base
from services.scheduler.domain import model
from services.scheduler.domain.facts import Early
from services.scheduler.domain.lifecycle import HOLDING
from services.scheduler.domain.marks import Ended, Marks, PoolBook
from services.scheduler.domain.policy import (
    Demotion,
    GroupPolicy,
    Rotation,
    Shares,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.store import DecisionRow, PoolMemory, SlotRow

SCHEMA = "scheduler"
Base = table_base(SCHEMA)
_HOLDING_SQL = ", ".join(f"'{state.value}'" for state in sorted(HOLDING))


class Task(Base, table=True):
    """``model.Task``: one row for each task that has not ended."""

    id: str = key_column()
    owner: str
    team: str
    spec: TaskSpec = json_column(TaskSpec)
    submitted_at: datetime = time_column()
    priority: Priority = enum_column(Priority)
    goal: Goal = enum_column(Goal)
    goal_now: bool
    revision: int
    goal_revision: int
    priority_revision: int
    state: TaskState = enum_column(TaskState, index=True)
    version: int
    reason: Reason = json_column(Reason)
    level: Priority = enum_column(Priority)
    accepted: bool
    attempt: int
    live_attempt: int | None
    placements: tuple[Placement, ...] = json_column(tuple[Placement, ...])
    assigned_at: datetime | None = time_column()
    start_deadline_at: datetime | None = time_column()
    run_started_at: datetime | None = time_column()
    listens: bool | None
    ack_deadline_at: datetime | None = time_column()
    preempted_for: str
    preempt_requested_at: datetime | None = time_column()
    promised: tuple[Placement, ...] = json_column(tuple[Placement, ...])
    marks: Marks = json_column(Marks)
    expected_seconds: float | None
    unserved_since: datetime | None = time_column()
    move_seconds: float | None
    end_reason: Reason | None = json_column(Reason)
    first_started_at: datetime | None = time_column()
    run_seconds: float
    not_before_at: datetime | None = time_column()
    retries_used: int
    start_attempts: int
    attempts_without_progress: int
    checkpoint: Checkpoint | None = json_column(Checkpoint)
    began_from_checkpoint: int
    exit: RunExit | None = json_column(RunExit)
    avoids: tuple[str, ...] = json_column(tuple[str, ...])
    __table_args__ = (
        rule(
            "task_live_attempt_is_the_last",
            "live_attempt IS NULL OR live_attempt = attempt",
            lambda row: row.live_attempt is None or row.live_attempt == row.attempt,
        ),
        rule(
            "task_holds_while_it_lives",
            f"(live_attempt IS NOT NULL) = (state IN ({_HOLDING_SQL}))",
            lambda row: (row.live_attempt is not None) == (row.state in HOLDING),
        ),
    )


class Slot(Base, table=True):
    """``SlotRow``: who has which GPU (-1: the whole of a node without GPUs)."""

    task_id: str = key_column()
    attempt: int = key_column()
    node_id: str = key_column()
    gpu: int = key_column()
    __table_args__ = (sa.UniqueConstraint("node_id", "gpu", name="slot_has_one_owner"),)


class Node(Base, table=True):
    """``model.Node``."""

    id: str = key_column()
    version: int
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    schedulable: bool
    ready: bool
    unusable_gpus: tuple[int, ...] = json_column(tuple[int, ...])
    draining: bool
    removed: bool
    labels: tuple[tuple[str, str], ...] = json_column(tuple[tuple[str, str], ...])
    taints: tuple[str, ...] = json_column(tuple[str, ...])
    changed_at: datetime | None = time_column()


class Limit(Base, table=True):
    """``model.Limit``."""

    group: str = key_column()
    user: str = key_column()
    team: str = key_column()
    priority: Priority = enum_column(Priority, key=True)
    unit: Unit = enum_column(Unit)
    limit: int
    version: int
    removed: bool


class Inventory(Base, table=True):
    """``model.Inventory``."""

    runtime: str = key_column()
    node_ids: tuple[str, ...] = json_column(tuple[str, ...])
    listed_at: datetime = time_column()
    version: int


class Policy(Base, table=True):
    """``GroupPolicy``: how a node group is shared. A group without a row has the defaults."""

    group: str = key_column()
    version: int
    policy: str
    timeshare: Timeshare = json_column(Timeshare)
    rotation: Rotation = json_column(Rotation)
    demotions: tuple[Demotion, ...] = json_column(tuple[Demotion, ...])
    shares: Shares = json_column(Shares)
    virtual_clusters: tuple[VirtualCluster, ...] = json_column(tuple[VirtualCluster, ...])
    protected_seconds: float | None
    topology: tuple[str, ...] = json_column(tuple[str, ...])
    cross_zone_gangs_max: int
    removed: bool
    from_file: bool
    changed_by: str
    changed_at: datetime | None = time_column()


class Book(Base, table=True):
    """``PoolBook``: what a pool's discipline keeps account of."""

    group: str = key_column()
    tokens: float
    tokens_at: datetime | None = time_column()
    grants: float
    grants_at: datetime | None = time_column()
    load: float
    sampled_at: datetime | None = time_column()
    scale: float


class Memory(Base, table=True):
    """``PoolMemory``: what a pool's discipline learned of running times, saved now and then."""

    group: str = key_column()
    saved_at: datetime = time_column()
    learned: dict[str, Any] = json_column(dict[str, Any])


class EarlyFact(Base, table=True):
    """``Early``: submit's facts that overtook the submission."""

    task_id: str = key_column()
    goal: Goal = enum_column(Goal)
    goal_now: bool
    goal_revision: int
    priority: Priority = enum_column(Priority)
    priority_revision: int
    first_at: datetime | None = time_column()


class EndedTask(Base, table=True):
    """``Ended``: the last that was said of a task."""

    task_id: str = key_column()
    ended_at: datetime = time_column(index=True)
    last: TaskStateChanged = json_column(TaskStateChanged)
    run_seconds: float


class Decision(Base, table=True):
    """``DecisionRow``: the history of decisions."""

    no: int = key_column()
    task_id: str
    attempt: int
    kind: str
    reason: Reason = json_column(Reason)
    decided_at: datetime = time_column(index=True)
    __table_args__ = (sa.Index("decision_of_task", "task_id", "no"),)


TABLES = Tables(
    schema=SCHEMA,
    rows={
        model.Task: Task,
        SlotRow: Slot,
        model.Node: Node,
        model.Limit: Limit,
        model.Inventory: Inventory,
        GroupPolicy: Policy,
        PoolBook: Book,
        PoolMemory: Memory,
        Early: EarlyFact,
        Ended: EndedTask,
        DecisionRow: Decision,
    },
)
