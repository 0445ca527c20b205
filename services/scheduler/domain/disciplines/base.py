"""What a discipline is: how the tasks of one level of one pool are ordered and share it.

``share.py`` and ``passes.py`` do the work the same way for all of them; a discipline only says the
order key of a task, and when it changes. Keys are seconds; the smallest runs first.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from services.scheduler.domain.marks import Marks
from services.scheduler.domain.model import Task

if TYPE_CHECKING:
    from services.scheduler.domain.pool import Pool


class Filling(Enum):
    """Who may start when an earlier task of the level finds no place."""

    # Nobody who could use the same nodes.
    STRICT = "strict"
    # Whoever fits what is free.
    GREEDY = "greedy"
    # Whoever does not delay the first that waits, as far as run times are known.
    RESERVE = "reserve"


class Discipline(Protocol):
    """The order inside a level. Pure: everything is a function of the rows and the moment."""

    @property
    def name(self) -> str:
        """As policy files write it."""
        ...

    @property
    def filling(self) -> Filling:
        """Who may pass a task that finds no place."""
        ...

    @property
    def preempts(self) -> bool:
        """True if a task may take the nodes of a run of its own level with a larger key."""
        ...

    @property
    def pays(self) -> bool:
        """True if such preemptions are paid from the pool's budget."""
        ...

    def waiting(self, pool: Pool, task: Task, now: datetime, finish: float) -> Marks:
        """The place in the order of a task that arrives or is back in the queue.

        ``finish``: where the owner's last tag ended; 0 if the owner had no live task.
        """
        ...

    def starting(self, pool: Pool, task: Task, now: datetime) -> Marks:
        """The marks of a run that begins; the task still has those it waited with."""
        ...

    def slice_over(self, pool: Pool, task: Task, now: datetime) -> Marks:
        """The marks of a run whose ``rekey_at`` has come."""
        ...

    def lead(self, now: datetime) -> float:
        """Seconds added to a waiting task's key when it is compared with running ones."""
        ...
