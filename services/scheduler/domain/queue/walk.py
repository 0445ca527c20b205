"""A walk evaluates the waiting tasks of a pool in order: by level, the discipline's key, and id.

It takes the head of each queue, and the next of a queue only when the one before it got what it
wanted. Queues for which too few nodes are free are passed over.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from enum import Enum
from math import inf, nextafter
from typing import NamedTuple, Protocol

from services.scheduler.domain.model.values import Shape
from services.scheduler.domain.queue.entry import COVERED, Entry
from services.scheduler.domain.queue.queues import (
    AUTO,
    LATE,
    Branch,
    Group,
    Item,
    Lanes,
    Queue,
    Tree,
)

# Before every true rank.
RANK_FIRST = -10 * COVERED


class Outcome(Enum):
    """What came of looking at a task."""

    # It got nodes, was promised some, or left the queue: the next of its queue is to be looked at.
    SERVED = "served"
    # It waits by itself, for a reason that does not concern the next of its queue.
    ASIDE = "aside"
    # Its owner's limits stop it, and with it its queue.
    LIMITED = "limited"
    # An earlier task of its owner goes first, and stops its queue until it is served.
    BEHIND = "behind"
    # It found no place, and no task of its level and shape will.
    STUCK = "stuck"
    # Nothing behind it can move either.
    OVER = "over"


# From an id and its key (None: as it is known) to an entry; None: not to be looked at now.
Make = Callable[[str, float | None], Entry | None]


class _Parked(NamedTuple):
    """What lacks too much to be looked at: a place in a queue, a branch, or queues of a level."""

    lack: float
    item: Item | None
    # Else: the level and the virtual cluster, and which of their classes of shapes.
    group: Group = (0, "")
    start: int = 0
    end: int = 0


def _lack(parked: _Parked) -> float:
    return parked.lack


class Looker(Protocol):
    """Who walks along the line."""

    def rank(self, weight: int, shape: Shape, cluster: str) -> int:
        """The rank that tasks of a level, a shape and a virtual cluster have now."""
        ...

    def look(self, entry: Entry) -> Outcome:
        """Decide about a task."""
        ...

    def lacks(self, weight: int, shape: Shape, cluster: str) -> float:
        """Node equivalents that must be there before a look at these queues moves anything."""
        ...

    def steady(self, weight: int) -> bool:
        """True if larger gangs of a level lack more."""
        ...

    def size(self, shape: Shape) -> float:
        """Node equivalents of a gang."""
        ...

    def there(self) -> float:
        """Node equivalents that are there, free or coming free."""
        ...

    def again(self, rank: int, shape: Shape, cluster: str) -> bool:
        """True if those of a kind that found no place are to be looked at again."""
        ...

    def sent(self) -> tuple[int, int]:
        """How many runs were sent away, and promises taken back, since the walk began."""
        ...


class Line:
    """One walk along the waiting tasks of a pool.

    ``keyed``: the keys of the queues are those of this moment. Otherwise, and for AUTO, an entry
    has to be made before its place is known. Where there are virtual clusters, what was given on
    the way may change a rank, so it is looked up again when a task comes up.
    """

    def __init__(
        self, lanes: Lanes, make: Make, late: Iterable[Entry], *, keyed: bool, ranked: bool
    ) -> None:
        self._lanes = lanes
        self._make = make
        self._keyed = keyed
        # Ranks are levels alone.
        self._fixed = keyed and not ranked
        self._late = {each.id: each for each in late}
        self._heap: list[Item] = [(*each[:3], LATE, None, each) for each in self._late.values()]
        # Least lacking first; None: nothing was asked about yet.
        self._parked: list[_Parked] | None = None
        self._sent = (0, 0)
        # Who found no place, by what they have in common.
        self._stuck: dict[tuple[int, Shape, str], list[Item]] = {}
        # Who waits behind an earlier task of the owner, by owner.
        self._behind: dict[str, list[Item]] = {}

    def push(self, entry: Entry) -> None:
        """Take up one more that is to be looked at, before the walk or on the way."""
        self._late[entry.id] = entry
        heapq.heappush(self._heap, (*entry[:3], LATE, None, entry))

    def walk(self, looker: Looker, *, wide: bool) -> None:
        """Look at everything once, in order; ``wide``: at the queues too, not only who is late.

        Queues where more is lacking than is there are passed over. When somebody was sent away
        they are asked about again: what those leave over goes to the first in order, not to the
        last who came.
        """
        self._sent = looker.sent()
        heapq.heapify(self._heap)
        if wide:
            self._begin(looker)
        while self._heap:
            item = heapq.heappop(self._heap)
            queue = item[4]
            if queue is None:
                if isinstance(item[5], Branch):
                    self._part(looker, item[5], item)
                    continue
            elif not self._comes_up(looker, queue, item):
                continue
            entry = self._entry(item)
            if entry is None:
                self._next(item)
            elif entry.rank != item[0] or (not self._keyed and entry.key != item[1]):
                # An AUTO task's true rank; or its owner was served on the way.
                heapq.heappush(self._heap, (*entry[:3], *item[3:]))
            else:
                outcome = looker.look(entry)
                if outcome is Outcome.OVER:
                    return
                self._ask_again(looker)
                self._put_aside(item, entry, outcome)

    def _put_aside(self, item: Item, entry: Entry, outcome: Outcome) -> None:
        """What becomes of a queue after its first was looked at."""
        if outcome is Outcome.SERVED:
            for each in self._behind.pop(entry.task.owner, ()):
                heapq.heappush(self._heap, each)
        if outcome is Outcome.STUCK:
            alike = entry.rank, entry.shape, entry.cluster
            self._stuck.setdefault(alike, []).append(item)
        elif outcome is Outcome.BEHIND:
            self._behind.setdefault(entry.task.owner, []).append(item)
        elif outcome is not Outcome.LIMITED:
            self._next(item)

    def _comes_up(self, looker: Looker, queue: Queue, item: Item) -> bool:
        """True if a task of a queue is to be looked at now; else it is put where it belongs."""
        weight, shape, who = queue.name
        alike = self._stuck.get((item[0], shape, who[0]))
        if alike is not None:
            alike.append(item)
            return False
        if weight == AUTO:
            return True
        ask = weight, shape, who[0]
        if self._keyed and not self._fixed:
            rank = looker.rank(*ask)
            if rank != item[0]:
                heapq.heappush(self._heap, (rank, *item[1:]))
                return False
        lack = looker.lacks(*ask)
        if lack > looker.there():
            self._parked = self._parked or []
            insort(self._parked, _Parked(lack, item), key=_lack)
            return False
        return True

    def _part(self, looker: Looker, branch: Branch, item: Item) -> None:
        """Take up the first row of a branch and what lies beside it, as far as tasks can move."""
        weight, cluster = branch.group
        rank = item[0] if self._fixed else looker.rank(weight, branch.least, cluster)
        if rank != item[0]:
            heapq.heappush(self._heap, (rank, *item[1:]))
            return
        tree: Tree = branch
        asked: Shape | None = None
        while isinstance(tree, Branch):
            if tree.least != asked:
                asked = tree.least
                lack = looker.lacks(weight, asked, cluster)
                if lack > looker.there():
                    self._parked = self._parked or []
                    insort(self._parked, _Parked(lack, tree.items(rank)[0]), key=_lack)
                    return
            low = tree.low.first == tree.first
            tree, other = (tree.low, tree.high) if low else (tree.high, tree.low)
            for each in other.items(rank):
                heapq.heappush(self._heap, each)
        for each in tree.items(rank):
            heapq.heappush(self._heap, each)

    def _entry(self, item: Item) -> Entry | None:
        """The entry of what comes up, as it is now; a branch has none."""
        _, _, task_id, place, queue, late = item
        if late is not None:
            if isinstance(late, Branch):
                return None
            if self._fixed and not late.task.is_auto:
                return late
        if queue is not None and task_id in self._late:
            # It comes, or came, by itself.
            return None
        # The key of the lanes, not the one that it has in the order of this moment.
        own = queue.keys[place][0] if queue is not None else None
        return self._make(task_id, own)

    def _ask_again(self, looker: Looker) -> None:
        """Those that were sent away on the way may leave enough for who was passed over."""
        if (sent := looker.sent()) == self._sent:
            return
        if sent[1] != self._sent[1] and not self._fixed:
            self._rank_anew(looker)
        self._sent = sent
        for alike in [each for each in self._stuck if looker.again(*each)]:
            for item in self._stuck.pop(alike):
                heapq.heappush(self._heap, item)
        if self._parked is None:
            self._begin(looker)
        else:
            # Less may be there than before, and yet enough in one place.
            self._go_on(looker)

    def _rank_anew(self, looker: Looker) -> None:
        """A promise that was taken back may let a guarantee cover others better."""
        heap, self._heap = self._heap, []
        for item in heap:
            entry, branch = self._entry(item), item[5]
            if entry is not None:
                self._heap.append((*entry[:3], *item[3:]))
            elif isinstance(branch, Branch):
                weight, cluster = branch.group
                self._heap.append((looker.rank(weight, branch.least, cluster), *item[1:]))
            else:
                self._heap.append(item)
        heapq.heapify(self._heap)

    def _begin(self, looker: Looker) -> None:
        """Take up all that is worth a look now."""
        self._parked = []
        for group in self._lanes.groups:
            classes = self._lanes.classes(group, looker.size)
            self._take_up(looker, group, range(len(classes)))
        heapq.heapify(self._heap)
        self._parked.sort(key=_lack)

    def _go_on(self, looker: Looker) -> None:
        """Take up those for which enough is there now."""
        parked = self._parked or []
        self._parked = []
        for each in parked:
            if each.item is None:
                self._take_up(looker, each.group, range(each.start, each.end))
            else:
                # What it lacks is looked at when it comes up.
                self._heap.append(each.item)
        heapq.heapify(self._heap)
        self._parked.sort(key=_lack)

    def _take_up(self, looker: Looker, group: Group, which: range) -> None:
        """Take up the queues of a level and virtual cluster for which enough is there."""
        weight, cluster = group
        assert self._parked is not None, "its callers begin with a list"
        classes, steady = self._lanes.classes(group, looker.size), looker.steady(weight)
        there = looker.there()
        spread = nextafter(there, inf)
        # Where the scheduler chooses the level, or owners count, the rank and the key are known
        # when the entry is made.
        known = weight != AUTO and self._keyed
        for place in which:
            shapes = classes[place]
            top = shapes.top
            assert top is not None, "a class without tasks is forgotten"
            least = top.least
            lack = -inf if weight == AUTO else looker.lacks(weight, least, cluster)
            if lack <= there:
                if known:
                    self._heap += top.items(looker.rank(weight, least, cluster))
                else:
                    for row in shapes:
                        self._heap += row.items(RANK_FIRST)
            elif steady and lack > spread:
                # Those after it are larger and lack more.
                self._parked.append(_Parked(lack, None, group, place, which.stop))
                return
            else:
                self._parked.append(_Parked(lack, None, group, place, place + 1))

    def _next(self, item: Item) -> None:
        rank, _, _, place, queue, _ = item
        if queue is not None and place + 1 < len(queue.keys):
            key, task_id = queue.keys[place + 1]
            heapq.heappush(self._heap, (rank, key, task_id, place + 1, queue, None))
