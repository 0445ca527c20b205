"""Who comes first: the level's weight, then the time of submission, then the id.

``snapshot.py`` keeps the queue in this order; ``decide`` asks it for the level of AUTO tasks.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from libs.contracts.messages import Priority
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.quota import Ledger, Need

LEVELS: tuple[Priority, ...] = tuple(
    sorted(
        (level for level in WEIGHTS if level not in (Priority.AUTO, Priority.UNSPECIFIED)),
        key=lambda level: -WEIGHTS[level],
    )
)


class Waiting(NamedTuple):
    """A queued task in the order of the queue; compare by the first three fields only."""

    minus_weight: int
    submitted_at: datetime
    id: str
    task: Task
    shape: Shape
    level: Priority


def waiting(task: Task, level: Priority | None = None) -> Waiting:
    """The queue entry of a task, at its own priority or at the level AUTO came to."""
    counted = task.priority if level is None else level
    return Waiting(-WEIGHTS[counted], task.submitted_at, task.id, task, task.shape, counted)


def is_auto(task: Task) -> bool:
    """True if the scheduler chooses the task's level."""
    return task.priority in (Priority.AUTO, Priority.UNSPECIFIED)


def auto_level(task: Task, need: Need, ledger: Ledger, level_max: Priority) -> Priority:
    """The highest level at which the owner has quota left; IDLE if there is none.

    Where nothing limits a level, it is as good as unlimited; so above ``level_max`` only levels
    that a limit names for this owner or team count, or AUTO would outrank everybody.
    """
    for level in LEVELS:
        rows = ledger.rows(task, level)
        if WEIGHTS[level] > WEIGHTS[level_max] and all(row.priority is not level for row in rows):
            continue
        if ledger.excess(task, level, need) is None:
            return level
    return Priority.IDLE
