"""The monitor's rows and all queries on them. Called by ``handlers.py`` inside a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from libs.contracts.messages import TaskState
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Where


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Where a task stands, by the scheduler's last event about it."""

    task_id: str
    # Counts the changes of the task's state: an event with a lower one is older.
    version: int
    owner: str
    team: str
    group: str
    state: TaskState
    attempt: int
    changed_at: datetime
    # None: the task has not ended.
    ended_at: datetime | None = None


def prune_rules(ended_keep: timedelta) -> tuple[PruneRule, ...]:
    """Return what the monitor prunes: tasks that ended."""
    return (
        aged(
            "ended tasks",
            ended_keep,
            TaskRow,
            ["task_id"],
            "ended_at",
            Where("ended_at", Op.NOT_NULL),
        ),
    )
