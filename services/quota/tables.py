"""quota's schema, ``quota``: one table class for each row of ``store.py``."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from libs.contracts.messages import Priority, Unit
from libs.store.columns import enum_column, key_column, time_column
from libs.store.tables import Tables, rule, table_base
from services.quota.store import CounterRow, QuotaRow, RunRow, TaskRow

SCHEMA = "quota"
Base = table_base(SCHEMA)


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
    changed_by: str
    changed_at: datetime = time_column()
    __table_args__ = (
        rule("quota_limit_counts", '"limit" >= 0', lambda row: row.limit >= 0),
        sa.UniqueConstraint("version", name="quota_version"),
    )


class Counter(Base, table=True):
    """``CounterRow``."""

    name: str = key_column()
    value: int


class Task(Base, table=True):
    """``TaskRow``."""

    task_id: str = key_column()
    owner: str
    team: str
    group: str
    heard_at: datetime | None = time_column()
    __table_args__ = (
        # Tasks that go with their last run are not in it.
        sa.Index("task_heard", "heard_at", postgresql_where=sa.text("heard_at IS NOT NULL")),
    )


class Run(Base, table=True):
    """``RunRow``."""

    task_id: str = key_column()
    attempt: int = key_column()
    gpus: int
    nodes: int
    started_at: datetime | None = time_column()
    ended_at: datetime | None = time_column(index=True)
    recorded: bool
    __table_args__ = (
        rule(
            "run_recorded_when_known",
            "NOT recorded OR (started_at IS NOT NULL AND ended_at IS NOT NULL)",
            lambda row: (
                not row.recorded or (row.started_at is not None and row.ended_at is not None)
            ),
        ),
    )


TABLES = Tables(
    schema=SCHEMA,
    rows={QuotaRow: Quota, CounterRow: Counter, TaskRow: Task, RunRow: Run},
    recent=(CounterRow, TaskRow, RunRow),
)
