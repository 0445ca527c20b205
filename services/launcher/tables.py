"""The launcher's schema, ``launcher``: one table for each row of ``domain/model.py``."""

from __future__ import annotations

from libs.store.tables import Tables, index, partial_unique, rule, table
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
    ),
    table(model.ReadyReport, "readyreport", key=("task_id", "attempt", "rank")),
    table(model.PastRun, "pastrun", index("forgotten_at"), key="task_id"),
    table(model.CheckpointRow, "savedcheckpoint", key=("task_id", "no")),
    table(model.LifeStateRow, "lifestate", key="task_id"),
    table(model.LifeStateContent, "lifestatecontent", key="task_id"),
    # The key guarantees that a port is leased to one run.
    table(model.PortLease, "masterport", key="port"),
    table(model.NodeRow, "inventorynode", key="node_id"),
)
