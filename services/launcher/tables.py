"""The launcher's schema, ``launcher``: one table class for each row of ``domain/model.py``."""

from __future__ import annotations

from datetime import datetime

from libs.contracts.messages import Checkpoint, Node, Placement, RunExit, TaskSpec
from libs.store.columns import enum_column, json_column, key_column, time_column
from libs.store.tables import Tables, partial_unique, rule, table_base
from services.launcher.domain import model
from services.launcher.domain.model import EndCause, RunState

SCHEMA = "launcher"
Base = table_base(SCHEMA)


class Run(Base, table=True):
    """``model.Run``: runs that are not forgotten yet."""

    task_id: str = key_column()
    attempt: int = key_column()
    state: RunState = enum_column(RunState)
    owner: str
    spec: TaskSpec | None = json_column(TaskSpec)
    placements: tuple[Placement, ...] = json_column(tuple[Placement, ...])
    resume_from: Checkpoint | None = json_column(Checkpoint)
    start_deadline_at: datetime | None = time_column()
    assigned_at: datetime | None = time_column()
    preempt_requested_at: datetime | None = time_column()
    preempt_deadline_at: datetime | None = time_column()
    kill_requested_at: datetime | None = time_column()
    acked_at: datetime | None = time_column()
    signalled_at: datetime | None = time_column()
    ending_at: datetime | None = time_column()
    end_cause: EndCause | None = enum_column(EndCause)
    end_note: str
    started_at: datetime | None = time_column()
    exited_at: datetime | None = time_column()
    exit: RunExit | None = json_column(RunExit)
    team: str
    failed_nodes: tuple[str, ...] = json_column(tuple[str, ...])
    start_expired: bool
    __table_args__ = (
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
            lambda row: row.state is RunState.TOMBSTONE or row.spec is not None,
        ),
        rule(
            "run_ends_for_a_cause",
            "(ending_at IS NULL) = (end_cause IS NULL)",
            lambda row: (row.ending_at is None) == (row.end_cause is None),
        ),
    )


class PastRun(Base, table=True):
    """``model.PastRun``."""

    task_id: str = key_column()
    attempt: int
    placements: tuple[Placement, ...] = json_column(tuple[Placement, ...])
    started_at: datetime | None = time_column()
    exit: RunExit = json_column(RunExit)
    checkpoint: Checkpoint | None = json_column(Checkpoint)
    forgotten_at: datetime = time_column(index=True)


class SavedCheckpoint(Base, table=True):
    """``model.CheckpointRow``."""

    task_id: str = key_column()
    no: int = key_column()
    attempt: int
    checkpoint: Checkpoint = json_column(Checkpoint)


class MasterPort(Base, table=True):
    """``model.PortLease``: the key holds that a port is leased to one run."""

    port: int = key_column()
    task_id: str
    attempt: int


class InventoryNode(Base, table=True):
    """``model.NodeRow``."""

    node_id: str = key_column()
    version: int
    node: Node = json_column(Node)
    removed: bool
    cordoned: bool
    changed_at: datetime = time_column()
    silent_since: datetime | None = time_column()
    labels: dict[str, str] = json_column(dict[str, str])
    taints: tuple[str, ...] = json_column(tuple[str, ...])
    closed: bool
    failed_starts: int
    failed_task: str
    quarantined_until: datetime | None = time_column()
    failed_owner: str


TABLES = Tables(
    schema=SCHEMA,
    rows={
        model.Run: Run,
        model.PastRun: PastRun,
        model.CheckpointRow: SavedCheckpoint,
        model.PortLease: MasterPort,
        model.NodeRow: InventoryNode,
    },
)
