"""log-collector's schema, ``log_collector``: one table class for each row of ``store.py``."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from libs.contracts.messages import Placement
from libs.store.columns import json_column, key_column, time_column
from libs.store.tables import Tables, rule, table_base
from services.log_collector.store import EntryRow, OutputRow, RunRow

SCHEMA = "log_collector"
Base = table_base(SCHEMA)


class Run(Base, table=True):
    """``RunRow``."""

    task_id: str = key_column()
    attempt: int = key_column()
    placements: tuple[Placement, ...] = json_column(tuple[Placement, ...])
    exited_at: datetime | None = time_column(index=True)
    collected: bool
    __table_args__ = (
        sa.Index("run_open", "task_id", "attempt", postgresql_where=sa.text("NOT collected")),
        rule(
            "run_collected_after_exit",
            "NOT collected OR exited_at IS NOT NULL",
            lambda row: not row.collected or row.exited_at is not None,
        ),
    )


class Output(Base, table=True):
    """``OutputRow``."""

    task_id: str = key_column()
    attempt: int = key_column()
    rank: int = key_column()
    size: int
    full: bool
    complete: bool
    recorded_at: datetime = time_column()
    skipped: int
    before: bytes
    binary: bool
    timestamps: int
    __table_args__ = (rule("output_size_counts", "size >= 0", lambda row: row.size >= 0),)


class IndexEntry(Base, table=True):
    """``EntryRow``."""

    task_id: str = key_column()
    attempt: int = key_column()
    rank: int = key_column()
    offset: int = key_column()
    first_at: datetime = time_column()
    last_at: datetime = time_column()


TABLES = Tables(schema=SCHEMA, rows={RunRow: Run, OutputRow: Output, EntryRow: IndexEntry})
