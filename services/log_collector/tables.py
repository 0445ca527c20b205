"""log-collector's schema, ``log_collector``: one table for each row of ``store.py``."""

from __future__ import annotations

from libs.store.retention import Retention, goes_with, one_per
from libs.store.tables import Tables, index, rule, table
from services.log_collector.store import EntryRow, OutputRow, OwnerRow, RunRow, SegmentRow

TABLES = Tables(
    "log_collector",
    table(
        RunRow,
        "run",
        index("exited_at"),
        index("task_id", "attempt", name="run_open", where="NOT collected"),
        index("task_id", "attempt", name="run_errors", where="errors_wanted"),
        index("exited_at", name="run_unsealed", where="collected AND NOT sealed"),
        index("exited_at", name="run_unwritten", where="collected AND NOT written"),
        index("owner", "exited_at", name="run_of_owner", where="collected"),
        rule(
            "run_collected_after_exit",
            "NOT collected OR exited_at IS NOT NULL",
            lambda row: not row.collected or row.exited_at is not None,
        ),
        key=("task_id", "attempt"),
        retention=Retention(
            "by age after the run's end, by number, and by its owner's bytes; with its files",
            ("keep_days", "kept_rows_max", "bytes_per_user_max"),
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
        SegmentRow,
        "segment",
        index("place", where="place <> 'bucket'"),
        rule("segment_size_counts", "size >= 0", lambda row: row.size >= 0),
        key=("task_id", "attempt", "rank", "number"),
        retention=goes_with(RunRow),
    ),
    table(
        OwnerRow,
        "owner",
        index("stored_bytes"),
        rule("owner_stored_counts", "stored_bytes > 0", lambda row: row.stored_bytes > 0),
        key="owner",
        retention=one_per("owner of a kept run"),
    ),
    table(
        EntryRow,
        "indexentry",
        key=("task_id", "attempt", "rank", "offset"),
        retention=goes_with(RunRow),
    ),
)
