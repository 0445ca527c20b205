"""The scheduler's schema, ``scheduler``: one table for each row of the domain and store.

The database refuses what must never be: a GPU with two owners (``slot``), a live attempt that is
not the last, a run that holds nothing or a waiting task that holds something.
"""

from __future__ import annotations

from libs.contracts.task_states import HOLDING
from libs.store.retention import deleted_by_age, goes_with, live_only, one_per
from libs.store.tables import Tables, index, rule, table, unique
from libs.store.task_traces import trace_table
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
        retention=live_only("tasks that have not ended; submit bounds those of each user"),
    ),
    table(
        SlotRow,
        "slot",
        unique("node_id", "gpu", name="slot_has_one_owner"),
        key=("task_id", "attempt", "node_id", "gpu"),
        retention=goes_with(rows.Task, "what live runs hold"),
    ),
    table(
        rows.Node,
        "node",
        key="id",
        retention=one_per(
            "node of the inventory", setting="removed_node_keep_seconds", rule="removed nodes"
        ),
    ),
    table(
        rows.Limit,
        "limit",
        key=("group", "user", "team", "priority", "grant"),
        retention=one_per(
            "cap and grant", setting="removed_quota_keep_seconds", rule="removed quotas"
        ),
    ),
    table(rows.Inventory, "inventory", key="runtime", retention=one_per("runtime")),
    # A group without a row has the defaults.
    table(
        GroupPolicy,
        "policy",
        key="group",
        retention=one_per("group of nodes that ever had a policy"),
    ),
    table(rows.PoolLedger, "book", key="group", retention=one_per("group of nodes")),
    table(PoolMemory, "memory", key="group", retention=one_per("group of nodes")),
    table(
        rows.EarlyFacts,
        "earlyfact",
        key="task_id",
        retention=deleted_by_age("early_keep_seconds", "the first of them", rule="early facts"),
    ),
    table(
        rows.EndedTask,
        "endedtask",
        index("ended_at"),
        key="task_id",
        retention=deleted_by_age("ended_keep_seconds", "the task's end", rule="ended tasks"),
    ),
    table(
        DecisionRow,
        "decision",
        index("decided_at"),
        index("task_id", "no", name="decision_of_task"),
        key="no",
        retention=deleted_by_age("decisions_keep_seconds", "the decision", rule="decisions"),
    ),
    trace_table(),
)
