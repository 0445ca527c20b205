"""What a discipline is: how the tasks of one level of one pool are ordered and share it.

``allocate.py`` and ``slice_round.py`` work the same way for all of them; a discipline only computes
the order key of a task, and when it changes. Keys are seconds; the smallest runs first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Protocol

from services.scheduler.domain.disciplines.timeshare.history import History
from services.scheduler.domain.disciplines.timeshare.tempo import Tempo
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.domain.model.rows import PoolLedger, Task
from services.scheduler.domain.model.values import Key, OrderKey


class Filling(Enum):
    """Which tasks may start when an earlier one of the level finds no place."""

    # None that could use the same nodes.
    STRICT = "strict"
    # Each that fits the free nodes.
    GREEDY = "greedy"
    # Each that does not delay the first that waits, as far as run times are known.
    RESERVE = "reserve"


class PoolView(Protocol):
    """What a discipline may read of its pool; ``pool.py`` implements it."""

    @property
    def policy(self) -> GroupPolicy:
        """How the group is shared."""
        ...

    @property
    def ledger(self) -> PoolLedger:
        """Its accounts and the load scale."""
        ...

    @property
    def history(self) -> History:
        """What was learned of running times."""
        ...

    @property
    def tempo(self) -> Tempo:
        """The rule's numbers, with times scaled to the work of this pool."""
        ...

    @property
    def units(self) -> float:
        """Node equivalents that are offered."""
        ...

    @property
    def owners(self) -> Mapping[str, int]:
        """Tasks that wait or run, by owner."""
        ...

    @property
    def running(self) -> Mapping[int, Sequence[Key]]:
        """Runs that could be preempted, by the weight of their level, in order."""
        ...

    def size(self, task: Task) -> float:
        """Node equivalents of a task."""
        ...

    def key(self, order_key: OrderKey) -> float:
        """The order key at the present scale."""
        ...

    def attained(self, task: Task, now: datetime) -> float:
        """Seconds a task has run in all."""
        ...

    def move_seconds(self, task: Task) -> float:
        """What being moved costs a task; seconds."""
        ...


class Discipline(ABC):
    """The order inside a level. Pure: everything is a function of the rows and the moment.

    Attributes:
        name: as policy files write it.
        filling: which tasks may pass one that finds no place.
        preempts: True if a task may take the nodes of a run of its own level with a larger key.
        pays: True if such preemptions are paid from the pool's budget.
        by_user: True if the order is between users first: ``order`` reads what they had. Then
            queues are kept per user, and ``finish`` is remembered when a user has no live task.
            Inside a user no task passes an earlier one of its level that waits for nodes it could
            use.
    """

    __slots__ = ()

    name: str
    filling: Filling = Filling.GREEDY
    preempts: bool = True
    pays: bool = False
    by_user: bool = False

    @abstractmethod
    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The place in the order of a task that arrives or is back in the queue.

        ``finish``: what is kept of the owner; 0 if nothing is.
        """

    @abstractmethod
    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The order key of a run that starts; the task still has the one it waited with."""

    @abstractmethod
    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The order key of a run whose ``rekey_at`` has passed. A discipline without slices gets
        only runs that began under another one.
        """

    def order(self, pool: PoolView, key: float, finish: float, now: datetime) -> float:
        """The key in the order of this round, given what is kept of the owner.

        The order of any two keys changes only when an order key is computed, never by time alone.
        """
        del pool, finish, now
        return key

    def spares(self, task: Task, run: Task) -> bool:
        """True if a waiting task never takes the nodes of this run, however late that comes."""
        del task, run
        return False

    def reach(
        self, pool: PoolView, task: Task, order_key: OrderKey, key: float, ratio: float
    ) -> float:
        """Runs with a larger key than this may be taken by a waiting task.

        ``ratio``: the size of the runs that would have to go, for the task's own size.
        """
        del pool, task, order_key, ratio
        return key

    def lead(self, now: datetime) -> float:
        """Seconds added to a waiting task's key when it is compared with running ones."""
        del now
        return 0.0
