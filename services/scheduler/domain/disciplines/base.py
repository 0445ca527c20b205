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

    @property
    def by_user(self) -> bool:
        """True if the order is between users first: ``order`` looks at what they had.

        Then queues are kept per user, and ``finish`` is remembered when a user has no live task.
        """
        ...

    def waiting(self, pool: Pool, task: Task, now: datetime, finish: float) -> Marks:
        """The place in the order of a task that arrives or is back in the queue.

        ``finish``: what is kept of the owner; 0 if nothing is.
        """
        ...

    def starting(self, pool: Pool, task: Task, now: datetime, finish: float) -> Marks:
        """The marks of a run that begins; the task still has those it waited with."""
        ...

    def slice_over(self, pool: Pool, task: Task, now: datetime, finish: float) -> Marks:
        """The marks of a run whose ``rekey_at`` has come."""
        ...

    def order(self, pool: Pool, key: float, finish: float, now: datetime) -> float:
        """The key in the order of this moment, given what is kept of the owner.

        The order of any two keys changes only when a mark is made, never by time alone.
        """
        ...

    def spares(self, task: Task, run: Task) -> bool:
        """True if a waiting task never takes the nodes of this run, however late that comes."""
        ...

    def reach(self, pool: Pool, task: Task, marks: Marks, key: float, ratio: float) -> float:
        """Runs with a larger key than this may be taken by a waiting task.

        ``ratio``: the size of the runs that would have to go, for the task's own size.
        """
        ...

    def lead(self, now: datetime) -> float:
        """Seconds added to a waiting task's key when it is compared with running ones."""
        ...


class Ordered:
    """What is the same for all disciplines that look at tasks and not at their owners."""

    __slots__ = ()

    @property
    def by_user(self) -> bool:
        """Owners do not matter."""
        return False

    def order(self, pool: Pool, key: float, finish: float, now: datetime) -> float:
        """The key as it is."""
        del pool, finish, now
        return key

    def spares(self, task: Task, run: Task) -> bool:
        """Nobody is spared for whose he is."""
        del task, run
        return False

    def reach(self, pool: Pool, task: Task, marks: Marks, key: float, ratio: float) -> float:
        """Whatever comes after it."""
        del pool, task, marks, ratio
        return key

    def lead(self, now: datetime) -> float:
        """Keys of waiting and running tasks are of one kind."""
        del now
        return 0.0
