"""submit's schema, ``submit``: one table for each row of ``store.py``.

The database holds what must be unique whatever happens: a client key makes one task, and an owner's
live tasks have different names.
"""

from __future__ import annotations

from libs.store.retention import deleted_by_age, live_only, one_per
from libs.store.tables import Tables, index, partial_unique, table, unique
from services.submit.store import InventoryRow, NodeRow, OwnerRow, QuotaRow, ShapeRow, TaskRow

TABLES = Tables(
    "submit",
    table(
        TaskRow,
        "task",
        # Live tasks are not in it.
        index("ended_at", name="task_ended", where="ended_at IS NOT NULL"),
        partial_unique(
            "task_live_name",
            "owner",
            "name",
            where="NOT ended",
            holds=lambda row: not row.ended,
        ),
        index("task_id", name="task_attempt_unknown", where="attempt < 0"),
        # Tasks without a key are never the same task.
        unique("owner", "client_key", name="task_client_key"),
        key="task_id",
        recent=True,
        retention=deleted_by_age("tasks_keep_seconds", "the task's end", rule="tasks"),
    ),
    table(OwnerRow, "owner", key="owner", retention=live_only("owners of live tasks")),
    table(
        NodeRow,
        "node",
        key="node_id",
        retention=one_per(
            "node of the inventory", setting="removed_node_keep_seconds", rule="removed nodes"
        ),
    ),
    table(ShapeRow, "nodeshape", key="shape", retention=live_only("kinds of nodes that are there")),
    table(InventoryRow, "inventory", key="runtime", retention=one_per("runtime")),
    table(
        QuotaRow,
        "quota",
        # Finds the rows of a task's group, user and team.
        index("group", "user", "team", name="quota_scope"),
        key="scope",
        retention=one_per(
            "cap and grant", setting="removed_quota_keep_seconds", rule="removed quotas"
        ),
    ),
)
