"""quota's schema, ``quota``: one table for each row of ``store.py``."""

from __future__ import annotations

from libs.store.retention import Retention, deleted_by_age, one_per
from libs.store.tables import Tables, index, rule, table, unique
from services.quota.store import CounterRow, QuotaRow, RunRow, TaskRow

TABLES = Tables(
    "quota",
    table(
        QuotaRow,
        "quota",
        rule("quota_limit_counts", '"limit" >= 0', lambda row: row.limit >= 0),
        rule(
            "quota_only_grants_are_unlimited",
            '"grant" OR NOT unlimited',
            lambda row: row.grant or not row.unlimited,
        ),
        unique("version", name="quota_version"),
        index("expires_at", name="quota_expires", where="expires_at IS NOT NULL AND NOT removed"),
        index("changed_at", name="quota_removed", where="removed"),
        key="scope",
        retention=one_per("cap and grant", setting="ledger_keep_seconds", rule="removed quotas"),
    ),
    table(CounterRow, "counter", key="name", recent=True, retention=Retention("one")),
    table(
        TaskRow,
        "task",
        # Tasks that are deleted with their last run are not in it.
        index("heard_at", name="task_heard", where="heard_at IS NOT NULL"),
        key="task_id",
        recent=True,
        retention=deleted_by_age(
            "ledger_keep_seconds", "its first event, or with its last run", rule="tasks"
        ),
    ),
    table(
        RunRow,
        "run",
        index("ended_at"),
        rule(
            "run_recorded_when_known",
            "NOT recorded OR (started_at IS NOT NULL AND ended_at IS NOT NULL)",
            lambda row: (
                not row.recorded or (row.started_at is not None and row.ended_at is not None)
            ),
        ),
        key=("task_id", "attempt"),
        recent=True,
        retention=deleted_by_age("ledger_keep_seconds", "the run's end", rule="runs"),
    ),
)
