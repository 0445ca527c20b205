"""Who comes first: the level's weight, then the discipline's key, then the id.

``line`` yields the waiting tasks of a pool that could move, in this order: one head after the
other, and the next of a queue only when the one before it got what it wanted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

from libs.contracts.messages import Priority
from services.scheduler.domain.clusters import UNCOVERED, Depth
from services.scheduler.domain.lanes import AUTO, Head, Lanes, Queue
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
# Before every true rank.
RANK_FIRST = -10 * COVERED
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
    # Nothing behind it can move either.
    OVER = "over"


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


# From an id and its key (None: as it is known) to an entry; None: not to be looked at now.
Make = Callable[[str, float | None], Entry | None]
Look = Callable[[Entry], Outcome]
# Rank, key, id, place in its queue (late ones: before the first), the queue, the late entry.
_Item: TypeAlias = tuple[int, float, str, int, Queue | None, Entry | None]
_LATE = -1


class Line:
    """One walk along the waiting tasks of a pool.

    ``fixed`` says that ranks are levels alone. Otherwise (AUTO, virtual clusters) what was given
    on the way may change the rank of an entry, so it is made again when it comes up.
    """

    def __init__(self, lanes: Lanes, make: Make, late: Iterable[Entry], *, fixed: bool) -> None:
        self._lanes = lanes
        self._make = make
        self._fixed = fixed
        self._late = {each.id: each for each in late}
        self._heap: list[_Item] = [(*each[:3], _LATE, None, each) for each in self._late.values()]

    def walk(
        self,
        look: Look,
        *,
        wide: bool,
        worth: Callable[[int, Shape], bool],
        sent: Callable[[], int],
    ) -> None:
        """Look at everything once, in order; ``wide``: at the queues too, not only who is late.

        ``worth(weight, shape)`` says whether a look at a whole row could move anything; rows that
        are passed over are asked about again when ``sent``, how many were sent away, has grown.
        """
        passed_over = self._begin_all(worth) if wide else []
        heapq.heapify(self._heap)
        known = sent()
        stuck: set[tuple[int, Shape, str]] = set()
        while self._heap:
            rank, key, task_id, place, queue, late = heapq.heappop(self._heap)
            if queue is not None and (rank, queue.name.shape, queue.name.who[0]) in stuck:
                continue
            entry = self._entry(task_id, place, queue, late)
            if entry is None:
                self._next(queue, place, rank)
                continue
            if entry.rank != rank or (not self._fixed and entry.key != key):
                # An AUTO task's true rank; or its owner was served on the way.
                heapq.heappush(self._heap, (entry.rank, entry.key, task_id, place, queue, late))
                continue
            outcome = look(entry)
            if outcome is Outcome.OVER:
                return
            if passed_over and sent() != known:
                known = sent()
                passed_over = self._ask_again(passed_over, worth)
            if outcome is Outcome.STUCK:
                stuck.add((rank, entry.shape, entry.cluster))
            elif outcome is not Outcome.LIMITED:
                self._next(queue, place, rank)

    def _entry(
        self, task_id: str, place: int, queue: Queue | None, late: Entry | None
    ) -> Entry | None:
        """The entry of what comes up, as it is now."""
        if late is not None and self._fixed and not is_auto(late.task):
            return late
        if queue is not None and task_id in self._late:
            # It comes, or came, by itself.
            return None
        # The key of the lanes, not the one that it has in the order of this moment.
        own = queue.keys[place][0] if queue is not None else None
        return self._make(task_id, own)

    def _begin_all(self, worth: Callable[[int, Shape], bool]) -> list[tuple[int, Shape]]:
        """Begin every row that is worth a look; returns the others."""
        passed_over: list[tuple[int, Shape]] = []
        for weight, rows in self._lanes.rows.items():
            for shape, row in rows.items():
                if weight == AUTO or worth(weight, shape):
                    self._begin(weight, row)
                else:
                    passed_over.append((weight, shape))
        return passed_over

    def _ask_again(
        self, rows: list[tuple[int, Shape]], worth: Callable[[int, Shape], bool]
    ) -> list[tuple[int, Shape]]:
        """Begin the rows that are worth a look now; returns the others."""
        found = [row for row in rows if worth(*row)]
        for weight, shape in found:
            self._begin(weight, self._lanes.rows[weight][shape])
        if found:
            heapq.heapify(self._heap)
        return [row for row in rows if row not in found]

    def _begin(self, weight: int, row: list[Head]) -> None:
        for key, task_id, queue in row:
            # The true rank of an AUTO task is known when it is made.
            rank = RANK_FIRST if weight == AUTO or not self._fixed else -weight
            self._heap.append((rank, key, task_id, 0, queue, None))

    def _next(self, queue: Queue | None, place: int, rank: int) -> None:
        if queue is not None and place + 1 < len(queue.keys):
            key, task_id = queue.keys[place + 1]
            heapq.heappush(self._heap, (rank, key, task_id, place + 1, queue, None))
