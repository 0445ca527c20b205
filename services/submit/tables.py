"""submit's schema, ``submit``: one table for each row of ``store.py``.

The database holds what must be unique whatever happens: a client key makes one task, and an owner's
live tasks have different names.
"""

from __future__ import annotations

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
        # Tasks without a key are never the same task.
        unique("owner", "client_key", name="task_client_key"),
        key="task_id",
        recent=True,
    ),
    table(OwnerRow, "owner", key="owner"),
    table(NodeRow, "node", key="node_id"),
    table(ShapeRow, "nodeshape", key="shape"),
    table(InventoryRow, "inventory", key="runtime"),
    table(QuotaRow, "quota", key="scope"),
)
