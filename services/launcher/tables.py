"""The launcher's schema, ``launcher``: one table for each row of ``domain/model.py``."""

from __future__ import annotations

from libs.store.retention import Retention, deleted_by_age, goes_with, live_only, one_per
from libs.store.tables import Tables, index, partial_unique, rule, table
from libs.store.task_traces import trace_table
from services.launcher.domain import model
from services.launcher.domain.model import RunState

TABLES = Tables(
    "launcher",
    table(
        model.Run,
        "run",
        # One attempt of a task runs at a time: the older one's exit comes first.
        partial_unique(
            "run_one_running",
            "task_id",
            where="state = 'running'",
            holds=lambda row: row.state is RunState.RUNNING,
        ),
        rule(
            "run_exit_is_recorded_once",
            "(exit IS NOT NULL) = (state IN ('exited', 'forgotten'))",
            lambda row: (
                (row.exit is not None) == (row.state in (RunState.EXITED, RunState.FORGOTTEN))
            ),
        ),
        rule(
            "run_is_specified",
            "state = 'tombstone' OR spec IS NOT NULL",
            lambda row: row.state is RunState.EARLY_REQUEST or row.spec is not None,
        ),
        rule(
            "run_ends_for_a_cause",
            "(ending_at IS NULL) = (end_cause IS NULL)",
            lambda row: (row.ending_at is None) == (row.end_cause is None),
        ),
        key=("task_id", "attempt"),
        retention=Retention(
            "runs that have not ended, and by age requests for runs that never came",
            ("inbox_keep_seconds",),
            ("requests",),
        ),
    ),
    table(
        model.ReadyReport,
        "readyreport",
        key=("task_id", "attempt", "rank"),
        retention=goes_with(model.Run),
    ),
    table(
        model.PastRun,
        "pastrun",
        index("forgotten_at"),
        key="task_id",
        retention=deleted_by_age("past_keep_seconds", "the task's last run", rule="past runs"),
    ),
    table(
        model.CheckpointRow,
        "savedcheckpoint",
        key=("task_id", "no"),
        retention=goes_with(model.PastRun, "the newest 20 of a task, deleted with it"),
    ),
    table(model.LifeStateRow, "lifestate", key="task_id", retention=goes_with(model.PastRun)),
    table(
        model.LifeStateContent,
        "lifestatecontent",
        key="task_id",
        retention=goes_with(model.LifeStateRow),
    ),
    # The key guarantees that a port is leased to one run.
    table(
        model.PortLease,
        "masterport",
        key="port",
        retention=live_only("ports that live runs hold, of a range"),
    ),
    table(
        model.NodeRow,
        "inventorynode",
        key="node_id",
        retention=one_per(
            "node of the inventory", setting="removed_node_keep_seconds", rule="removed nodes"
        ),
    ),
    trace_table(),
)
