"""The gateway's schema, ``gateway``: one table for each row of ``rows.py``."""

from __future__ import annotations

from libs.store.tables import Tables, index, table, unique
from services.gateway import rows

TABLES = Tables(
    "gateway",
    table(
        rows.TaskRow,
        "task",
        # For each order of lists (``api/tasks.py``), and for those of one owner, team or group.
        index("owner", "task_id"),
        index("team", "task_id"),
        index("group", "task_id"),
        index("name", "task_id"),
        index("state", "task_id DESC", name="task_state"),
        index("priority_order DESC", "task_id", name="task_priority"),
        index("chain"),
        # Tasks that have not ended are not in it.
        index("finished_at", name="task_finished", where="finished_at IS NOT NULL"),
        # Finds tasks by an id's end.
        index("reverse(task_id)", name="task_id_tail"),
        key="task_id",
        recent=True,
    ),
    table(
        rows.AcceptedRow, "accepted", index("owner"), index("name"), index("state"), key="task_id"
    ),
    table(rows.RunRow, "run", index("live"), key=("task_id", "attempt"), recent=True),
    table(
        rows.UsageRow,
        "usage",
        # Finds what was held in a period, and what is old.
        index("held_until"),
        key=("task_id", "attempt"),
        recent=True,
    ),
    table(rows.NodeRow, "node", key="node_id"),
    table(rows.QuotaRow, "quota", key=("group", "user", "team", "priority", "unit", "grant")),
    table(
        rows.EventRow,
        "event",
        index("fact"),
        index("task_id", "position"),
        index("owner", "position"),
        index("team", "position"),
        index("group", "position"),
        # Those whose owner is found when the task's submission is projected, or by the next leader.
        index("position", name="event_ownerless", where="owner = '' AND task_id <> ''"),
        key="position",
    ),
    table(rows.EventHeadRow, "eventhead", key="name", recent=True),
    table(rows.RebuildRow, "rebuild", key="service"),
    table(rows.MetricsRow, "metrics", key=("task_id", "rank")),
    table(rows.MetricTailRow, "metrictail", key=("task_id", "rank")),
    table(rows.ProgressRow, "progress", key="task_id"),
    table(rows.UserRow, "user", key="name"),
    table(rows.TeamRow, "team", key="name"),
    table(rows.TokenRow, "token", unique("id"), index("user"), key="token_hash"),
    table(rows.TokenUseRow, "tokenuse", key="token_id"),
    table(rows.AuditRow, "audit", index("at"), index("who"), key="id"),
)
