"""The monitor's schema, ``monitor``: one table for each row of ``store.py``."""

from __future__ import annotations

from libs.store.retention import deleted_by_age
from libs.store.tables import Tables, index, table
from services.monitor.store import TaskRow

TABLES = Tables(
    "monitor",
    table(
        TaskRow,
        "task",
        index("ended_at", name="task_ended", where="ended_at IS NOT NULL"),
        key="task_id",
        recent=True,
        retention=deleted_by_age("ended_tasks_keep_seconds", "the task's end", rule="ended tasks"),
    ),
)
