"""What a discipline is: how the tasks of one level of one pool are ordered and share it.

``allocate.py`` and ``slice_round.py`` work the same way for all of them; a discipline only computes
the order key of a task, and when it changes. Keys are seconds; the smallest runs first.
"""

from __future__ import annotations

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
    """Who may start when an earlier task of the level finds no place."""

    # Nobody who could use the same nodes.
    STRICT = "strict"
    # Whoever fits what is free.
    GREEDY = "greedy"
    # Whoever does not delay the first that waits, as far as run times are known.
    RESERVE = "reserve"


class PoolView(Protocol):
    """What a discipline may know of its pool; ``pool.py`` has it."""

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
        """The rule's numbers, as fast as the work of this pool is."""
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
        Inside a user no task passes an earlier one of its level that waits for nodes it could use.
        """
        ...

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The place in the order of a task that arrives or is back in the queue.

        ``finish``: what is kept of the owner; 0 if nothing is.
        """
        ...

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The order key of a run that starts; the task still has the one it waited with."""
        ...

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """The order key of a run whose ``rekey_at`` has come."""
        ...

    def order(self, pool: PoolView, key: float, finish: float, now: datetime) -> float:
        """The key in the order of this round, given what is kept of the owner.

        The order of any two keys changes only when an order key is computed, never by time alone.
        """
        ...

    def spares(self, task: Task, run: Task) -> bool:
        """True if a waiting task never takes the nodes of this run, however late that comes."""
        ...

    def reach(
        self, pool: PoolView, task: Task, order_key: OrderKey, key: float, ratio: float
    ) -> float:
        """Runs with a larger key than this may be taken by a waiting task.

        ``ratio``: the size of the runs that would have to go, for the task's own size.
        """
        ...

    def lead(self, now: datetime) -> float:
        """Seconds added to a waiting task's key when it is compared with running ones."""
        ...


class Plain:
    """What is the same for nearly all: runs are taken if they come later, at no price."""

    __slots__ = ()

    def reach(
        self, pool: PoolView, task: Task, order_key: OrderKey, key: float, ratio: float
    ) -> float:
        """Whatever comes after it."""
        del pool, task, order_key, ratio
        return key

    def lead(self, now: datetime) -> float:
        """Keys of waiting and running tasks are of one kind."""
        del now
        return 0.0


class Ordered(Plain):
    """What is the same for all disciplines that order tasks and not owners."""

    __slots__ = ()

    @property
    def by_user(self) -> bool:
        """Owners do not matter."""
        return False

    def order(self, pool: PoolView, key: float, finish: float, now: datetime) -> float:
        """The key as it is."""
        del pool, finish, now
        return key

    def spares(self, task: Task, run: Task) -> bool:
        """Nobody is spared for whose he is."""
        del task, run
        return False
