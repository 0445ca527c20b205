"""submit's schema, ``submit``: one table class for each row of ``store.py``.

The database holds what must be unique whatever happens: a client key makes one task, and an owner's
live tasks have different names.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from libs.contracts.messages import Goal, Priority, TaskSpec, TaskState, Unit
from libs.store.columns import enum_column, json_column, key_column, time_column
from libs.store.tables import Tables, partial_unique, table_base
from services.submit.store import InventoryRow, NodeRow, OwnerRow, QuotaRow, ShapeRow, TaskRow

SCHEMA = "submit"
Base = table_base(SCHEMA)


class Task(Base, table=True):
    """``TaskRow``."""

    task_id: str = key_column()
    owner: str
    team: str
    name: str
    client_key: str | None
    asked: TaskSpec = json_column(TaskSpec)
    spec: TaskSpec = json_column(TaskSpec)
    submitted_at: datetime = time_column()
    revision: int
    goal: Goal = enum_column(Goal)
    goal_now: bool
    goal_revision: int
    goal_changed_by: str
    goal_changed_at: datetime = time_column()
    priority: Priority = enum_column(Priority)
    priority_revision: int
    priority_changed_by: str
    priority_changed_at: datetime = time_column()
    state: TaskState = enum_column(TaskState)
    state_version: int
    ended: bool
    ended_at: datetime | None = time_column()
    __table_args__ = (
        # Live tasks are not in it.
        sa.Index("task_ended", "ended_at", postgresql_where=sa.text("ended_at IS NOT NULL")),
        partial_unique(
            "task_live_name",
            "owner",
            "name",
            where="NOT ended",
            holds=lambda row: not row.ended,
        ),
        # NULLs differ from one another: tasks without a key are never the same task.
        sa.UniqueConstraint("owner", "client_key", name="task_client_key"),
    )


class Owner(Base, table=True):
    """``OwnerRow``."""

    owner: str = key_column()
    live_tasks: int


class Node(Base, table=True):
    """``NodeRow``."""

    node_id: str = key_column()
    version: int
    removed: bool
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    changed_at: datetime | None = time_column()
    labels: dict[str, str] | None = json_column(dict[str, str])
    taints: tuple[str, ...] | None = json_column(tuple[str, ...])


class NodeShape(Base, table=True):
    """``ShapeRow``."""

    shape: str = key_column()
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    nodes: int
    taints: tuple[str, ...] = json_column(tuple[str, ...])


class Inventory(Base, table=True):
    """``InventoryRow``."""

    runtime: str = key_column()
    listed_at: datetime = time_column()
    missing: tuple[str, ...] = json_column(tuple[str, ...])
    version: int


class Quota(Base, table=True):
    """``QuotaRow``."""

    scope: str = key_column()
    version: int
    removed: bool
    group: str
    user: str
    team: str
    priority: Priority = enum_column(Priority)
    unit: Unit = enum_column(Unit)
    limit: int


TABLES = Tables(
    schema=SCHEMA,
    rows={
        TaskRow: Task,
        OwnerRow: Owner,
        NodeRow: Node,
        ShapeRow: NodeShape,
        InventoryRow: Inventory,
        QuotaRow: Quota,
    },
    recent=(TaskRow,),
)
