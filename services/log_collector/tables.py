"""log-collector's schema, ``log_collector``: one table for each row of ``store.py``."""

from __future__ import annotations

from libs.store.retention import Retention, goes_with
from libs.store.tables import Tables, index, rule, table
from services.log_collector.store import EntryRow, OutputRow, RunRow

TABLES = Tables(
    "log_collector",
    table(
        RunRow,
        "run",
        index("exited_at"),
        index("task_id", "attempt", name="run_open", where="NOT collected"),
        index("task_id", "attempt", name="run_errors", where="errors_wanted"),
        rule(
            "run_collected_after_exit",
            "NOT collected OR exited_at IS NOT NULL",
            lambda row: not row.collected or row.exited_at is not None,
        ),
        key=("task_id", "attempt"),
        retention=Retention(
            "by age after the run's end, and by number; with its files",
            ("keep_days", "kept_rows_max"),
        ),
    ),
    table(
        OutputRow,
        "output",
        rule("output_size_counts", "size >= 0", lambda row: row.size >= 0),
        key=("task_id", "attempt", "rank"),
        retention=goes_with(RunRow),
    ),
    table(
        EntryRow,
        "indexentry",
        key=("task_id", "attempt", "rank", "offset"),
        retention=goes_with(RunRow),
    ),
)
