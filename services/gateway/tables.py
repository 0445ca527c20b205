"""The gateway's tables. Touched by the store library only; rows travel as ``rows.py`` has them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from pydantic import PlainSerializer
from sqlmodel import Field

from libs.contracts import messages as m
from libs.store.columns import json_column, key_column, time_column
from libs.store.tables import Tables, table_base
from services.gateway import rows
from services.gateway.words import figure

Base = table_base("gateway")


# JSONB has no word for what is no number, and writes 1e20 as a whole number; read as floats, both
# come back as what they were.
Figure = Annotated[float, PlainSerializer(figure, when_used="json")]
Figures = dict[str, Figure]


class _TaskColumns(Base):
    task_id: str = key_column()
    submitted_at: datetime | None = time_column()
    owner: str = Field(index=True)
    team: str
    name: str = Field(index=True)
    group: str
    labels: dict[str, str] = json_column(dict[str, str])
    spec: m.TaskSpec | None = json_column(m.TaskSpec)
    priority: str
    priority_order: int
    priority_revision: int
    goal: str
    goal_revision: int
    revision: int
    state: str = Field(index=True)
    state_version: int
    reason: m.Reason | None = json_column(m.Reason)
    attempt: int
    observed_revision: int
    started_at: datetime | None = time_column()
    finished_at: datetime | None = time_column()
    checkpoint: m.Checkpoint | None = json_column(m.Checkpoint)
    exit: m.RunExit | None = json_column(m.RunExit)
    held_gpus: int
    held_nodes: int
    attempts_without_progress: int
    changed_at: datetime | None = time_column()


class Task(_TaskColumns, table=True):
    """Tasks as projected."""

    # Tasks that have not ended are not in the first; the second finds them by an id's end.
    __table_args__ = (
        sa.Index(
            "task_finished", "finished_at", postgresql_where=sa.text("finished_at IS NOT NULL")
        ),
        sa.Index("task_id_tail", sa.text("reverse(task_id)")),
    )


class Accepted(_TaskColumns, table=True):
    """Tasks answered for and not projected yet."""


class Run(Base, table=True):
    """Attempts."""

    task_id: str = key_column()
    attempt: int = key_column()
    assigned_at: datetime | None = time_column()
    placements: tuple[m.Placement, ...] = json_column(tuple[m.Placement, ...])
    start_deadline_at: datetime | None = time_column()
    resume_from: m.Checkpoint | None = json_column(m.Checkpoint)
    delayed: m.RunDelayed | None = json_column(m.RunDelayed)
    started_at: datetime | None = time_column()
    listening_at: datetime | None = time_column()
    preempt_requested_at: datetime | None = time_column()
    preempt_deadline_at: datetime | None = time_column()
    preempt_reason: m.Reason | None = json_column(m.Reason)
    kill_requested_at: datetime | None = time_column()
    kill_reason: m.Reason | None = json_column(m.Reason)
    checkpoint: m.Checkpoint | None = json_column(m.Checkpoint)
    exit: m.RunExit | None = json_column(m.RunExit)
    live: bool = Field(index=True)


class Node(Base, table=True):
    """Nodes."""

    node_id: str = key_column()
    version: int
    group: str
    node: m.Node = json_column(m.Node)
    removed: bool
    changed_at: datetime = time_column()


class Quota(Base, table=True):
    """Limits."""

    group: str = key_column()
    user: str = key_column()
    team: str = key_column()
    priority: str = key_column()
    unit: str = key_column()
    limit: int
    version: int
    removed: bool
    changed_by: str
    changed_at: datetime = time_column()


class Event(Base, table=True):
    """The event log."""

    position: int = key_column()
    type: str
    fact: str = Field(index=True)
    task_id: str = Field(index=True)
    attempt: int
    at: datetime = time_column()
    data: dict[str, Any] = json_column(dict[str, Any])
    bytes_before: int


class EventHead(Base, table=True):
    """The event log's ends."""

    name: str = key_column()
    position: int
    oldest: int
    bytes: int


class Rebuild(Base, table=True):
    """Services asked to say their facts again."""

    service: str = key_column()
    asked_at: datetime = time_column()
    events: int


class Metrics(Base, table=True):
    """What ranks reported."""

    task_id: str = key_column()
    rank: int = key_column()
    attempt: int
    at: datetime = time_column()
    latest: dict[str, float] = json_column(Figures)
    points: list[tuple[int, float, dict[str, float]]] = json_column(
        list[tuple[int, float, Figures]]
    )
    stride: int
    count: int


class MetricTail(Base, table=True):
    """The newest of what ranks reported."""

    task_id: str = key_column()
    rank: int = key_column()
    attempt: int
    at: datetime = time_column()
    latest: dict[str, float] = json_column(Figures)
    points: list[tuple[int, float, dict[str, float]]] = json_column(
        list[tuple[int, float, Figures]]
    )
    stride: int
    count: int
    points_before: int
    values_before: int


class Progress(Base, table=True):
    """Where tasks say that they are."""

    task_id: str = key_column()
    attempt: int
    at: datetime = time_column()
    latest: dict[str, float] = json_column(Figures)


class User(Base, table=True):
    """Users."""

    name: str = key_column()
    role: str
    team: str
    disabled: bool
    created_at: datetime = time_column()


class Team(Base, table=True):
    """Teams."""

    name: str = key_column()
    created_at: datetime = time_column()


class Token(Base, table=True):
    """Tokens, by their hashes."""

    token_hash: str = key_column()
    id: str = Field(unique=True)
    user: str = Field(index=True)
    name: str
    created_by: str
    created_at: datetime = time_column()
    expires_at: datetime | None = time_column()
    revoked_at: datetime | None = time_column()


class Audit(Base, table=True):
    """The audit trail."""

    id: str = key_column()
    at: datetime = time_column(index=True)
    who: str
    action: str
    target: str
    outcome: str
    detail: str


TABLES = Tables(
    schema="gateway",
    rows={
        rows.TaskRow: Task,
        rows.AcceptedRow: Accepted,
        rows.RunRow: Run,
        rows.NodeRow: Node,
        rows.QuotaRow: Quota,
        rows.EventRow: Event,
        rows.EventHeadRow: EventHead,
        rows.RebuildRow: Rebuild,
        rows.MetricsRow: Metrics,
        rows.MetricTailRow: MetricTail,
        rows.ProgressRow: Progress,
        rows.UserRow: User,
        rows.TeamRow: Team,
        rows.TokenRow: Token,
        rows.AuditRow: Audit,
    },
    recent=(rows.TaskRow, rows.RunRow, rows.EventHeadRow),
)
