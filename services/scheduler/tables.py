"""The scheduler's schema, ``scheduler``: one table for each row of the domain and store.

The database refuses what must never be: a GPU with two owners (``slot``), a live attempt that is
not the last, a run that holds nothing or a waiting task that holds something.
"""

from __future__ import annotations

from libs.contracts.task_states import HOLDING
from libs.store.tables import Tables, index, rule, table, unique
from services.scheduler.domain.model import rows
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.store import DecisionRow, PoolMemory, SlotRow

_HOLDING_SQL = ", ".join(f"'{state.value}'" for state in sorted(HOLDING))

TABLES = Tables(
    "scheduler",
    # Tasks that have not ended.
    table(
        rows.Task,
        "task",
        index("state"),
        rule(
            "task_live_attempt_is_the_last",
            "live_attempt IS NULL OR live_attempt = attempt",
            lambda row: row.live_attempt is None or row.live_attempt == row.attempt,
        ),
        rule(
            "task_holds_while_it_lives",
            f"(live_attempt IS NOT NULL) = (state IN ({_HOLDING_SQL}))",
            lambda row: (row.live_attempt is not None) == (row.state in HOLDING),
        ),
        key="id",
    ),
    table(
        SlotRow,
        "slot",
        unique("node_id", "gpu", name="slot_has_one_owner"),
        key=("task_id", "attempt", "node_id", "gpu"),
    ),
    table(rows.Node, "node", key="id"),
    table(rows.Limit, "limit", key=("group", "user", "team", "priority", "grant")),
    table(rows.Inventory, "inventory", key="runtime"),
    # A group without a row has the defaults.
    table(GroupPolicy, "policy", key="group"),
    table(rows.PoolLedger, "book", key="group"),
    table(PoolMemory, "memory", key="group"),
    table(rows.EarlyFacts, "earlyfact", key="task_id"),
    table(rows.EndedTask, "endedtask", index("ended_at"), key="task_id"),
    table(
        DecisionRow,
        "decision",
        index("decided_at"),
        index("task_id", "no", name="decision_of_task"),
        key="no",
    ),
)
