"""Who comes first: the level's weight, then the discipline's key, then the id.

``line`` yields the waiting tasks of a pool that could move, in this order: one head after the
other, and the next of a queue only when the one before it got what it wanted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from libs.contracts.messages import Priority
from services.scheduler.domain.clusters import UNCOVERED, Depth
from services.scheduler.domain.lanes import AUTO, Lanes, Queue
from services.scheduler.domain.model import WEIGHTS, Shape, Task
from services.scheduler.domain.quota import Ledger, Need

LEVELS: tuple[Priority, ...] = tuple(
    sorted(
        (level for level in WEIGHTS if level not in (Priority.AUTO, Priority.UNSPECIFIED)),
        key=lambda level: -WEIGHTS[level],
    )
)
# More than any weight; and how many levels of virtual clusters are told apart.
COVERED = 1_000
DEPTHS_MAX = 8
LEVEL_OF_WEIGHT: dict[int, Priority] = {WEIGHTS[level]: level for level in LEVELS}


class Outcome(Enum):
    """What came of looking at a task."""

    # It got nodes, was promised some, or left the queue: the next of its queue is to be looked at.
    SERVED = "served"
    # It waits by itself, for a reason that does not concern the next of its queue.
    ASIDE = "aside"
    # Its owner's limits stop it, and with it its queue.
    LIMITED = "limited"
    # It found no place, and no task of its level and shape will.
    STUCK = "stuck"


class Entry(NamedTuple):
    """A waiting task in the order; compare by the first three fields only."""

    # Minus the weight; what a guarantee covers comes before all that none does.
    rank: int
    key: float
    id: str
    task: Task
    shape: Shape
    level: Priority
    # Its virtual cluster, and how it would be covered now.
    cluster: str = ""
    depth: Depth = UNCOVERED

    @property
    def weight(self) -> int:
        """The weight of its level."""
        return WEIGHTS[self.level]


def rank_of(weight: int, depth: Depth) -> int:
    """The first part of the order: the best covered first, then the highest level."""
    return -weight - COVERED * max(0, DEPTHS_MAX - depth)


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


Make = Callable[[str, float], Entry | None]
Remake = Callable[[Entry], Entry]
Look = Callable[[Entry], Outcome]


class Line:
    """One walk along the waiting tasks of a pool.

    ``make`` turns an id and its key into an entry (None: not to be looked at now); ``remake``
    does so again when an entry whose rank may have changed comes up.
    """

    def __init__(self, lanes: Lanes, make: Make, remake: Remake, late: Iterable[Entry]) -> None:
        self._lanes = lanes
        self._make = make
        self._remake = remake
        self._late = sorted(late, key=_rank)

    def walk(self, look: Look, *, wide: bool, worth: Callable[[int, Shape], bool]) -> None:
        """Look at everything once, in order; ``wide``: at the queues too, not only who is late.

        ``worth(weight, shape)`` says whether a look at a whole row could move anything.
        """
        heap: list[tuple[int, float, str, Entry, Queue | None, int]] = [
            (*entry[:3], entry, None, 0) for entry in self._late
        ]
        if wide:
            for weight, rows in self._lanes.rows.items():
                for shape, row in rows.items():
                    if weight == AUTO or worth(weight, shape):
                        for key, task_id, queue in row:
                            self._push(heap, key, task_id, queue, 0)
        heapq.heapify(heap)
        stuck: set[tuple[int, Shape, str]] = set()
        while heap:
            rank, _, _, entry, queue, place = heapq.heappop(heap)
            if entry.cluster or is_auto(entry.task):
                # What was given in this round may have filled its level or its guarantee.
                entry = self._remake(entry)
                if entry.rank != rank:
                    heapq.heappush(heap, (*entry[:3], entry, queue, place))
                    continue
            row = (rank, entry.shape, entry.cluster)
            if queue is not None and row in stuck:
                continue
            outcome = look(entry)
            if outcome is Outcome.STUCK:
                stuck.add(row)
            elif queue is not None and outcome is not Outcome.LIMITED:
                following = queue.keys[place + 1 : place + 2]
                for next_key, next_id in following:
                    self._push(heap, next_key, next_id, queue, place + 1, ordered=True)

    def _push(
        self,
        heap: list[tuple[int, float, str, Entry, Queue | None, int]],
        key: float,
        task_id: str,
        queue: Queue,
        place: int,
        *,
        ordered: bool = False,
    ) -> None:
        """The first of a queue, from a place on, that is to be looked at."""
        while True:
            entry = self._make(task_id, key)
            if entry is not None:
                item = (*entry[:3], entry, queue, place)
                if ordered:
                    heapq.heappush(heap, item)
                else:
                    heap.append(item)
                return
            place += 1
            if place >= len(queue.keys):
                return
            key, task_id = queue.keys[place]


def _rank(entry: Entry) -> tuple[int, float, str]:
    return entry[:3]
