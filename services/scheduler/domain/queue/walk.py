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
    INDIVIDUAL,
    Branch,
    Group,
    Item,
    Queue,
    Queues,
    Tree,
)

# Before every true rank.
RANK_FIRST = -10 * COVERED


class Outcome(Enum):
    """What came of evaluating a task."""

    # It got nodes, was promised some, or left the queue: the next of its queue is evaluated.
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


# From an id and its key (None: as it is known) to an entry; None: it is not evaluated now.
MakeEntry = Callable[[str, float | None], Entry | None]


class _Skipped(NamedTuple):
    """What needs more nodes than are free: a place in a queue, a branch, or queues of a level."""

    needed: float
    item: Item | None
    # Else: the level and the virtual cluster, and which of their classes of shapes.
    group: Group = (0, "")
    start: int = 0
    end: int = 0


def _units_needed(skipped: _Skipped) -> float:
    return skipped.needed


class Evaluator(Protocol):
    """Decides about the tasks of a walk."""

    def rank(self, weight: int, shape: Shape, cluster: str) -> int:
        """The rank that tasks of a level, a shape and a virtual cluster have now."""
        ...

    def evaluate(self, entry: Entry) -> Outcome:
        """Decide about a task."""
        ...

    def units_needed(self, weight: int, shape: Shape, cluster: str) -> float:
        """Node equivalents that must be available before evaluating these queues moves anything."""
        ...

    def larger_needs_more(self, weight: int) -> bool:
        """True if larger gangs of a level always need more node equivalents."""
        ...

    def order(self, shape: Shape) -> float:
        """Where queues of this shape stand among others of a level; see ``larger_needs_more``."""
        ...

    def units_available(self) -> float:
        """Node equivalents that are free or being released."""
        ...

    def fits_again(self, rank: int, shape: Shape, cluster: str) -> bool:
        """True if equivalent tasks that found no place are to be evaluated again."""
        ...

    def releases(self) -> tuple[int, int]:
        """How many runs were released, and promises withdrawn, in this round."""
        ...


class QueueWalk:
    """One walk along the waiting tasks of a pool.

    ``keyed``: the keys of the queues are those of this moment. Otherwise, and for AUTO, an entry
    has to be made before its place is known. Where there are virtual clusters, what was given on
    the way may change a rank, so it is looked up again when a task comes up.
    """

    def __init__(
        self,
        queues: Queues,
        make: MakeEntry,
        individual: Iterable[Entry],
        *,
        keyed: bool,
        ranked: bool,
    ) -> None:
        self._queues = queues
        self._make_entry = make
        self._keyed = keyed
        # Ranks are levels alone.
        self._fixed = keyed and not ranked
        self._individual = {each.id: each for each in individual}
        self._heap: list[Item] = [
            (*each[:3], INDIVIDUAL, None, each) for each in self._individual.values()
        ]
        # The least needed first; None: the queues were not evaluated yet.
        self._skipped: list[_Skipped] | None = None
        self._releases = (0, 0)
        # What found no place, by what they have in common.
        self._stuck: dict[tuple[int, Shape, str], list[Item]] = {}
        # What waits behind an earlier task of the owner, by owner.
        self._behind: dict[str, list[Item]] = {}

    def push(self, entry: Entry) -> None:
        """Add a task that is evaluated whatever its queue, before or during the walk."""
        self._individual[entry.id] = entry
        heapq.heappush(self._heap, (*entry[:3], INDIVIDUAL, None, entry))

    def walk(self, evaluator: Evaluator, *, full_scan: bool) -> None:
        """Evaluate everything once, in order; without ``full_scan`` only the individual tasks.

        Queues that need more than is available are skipped. They are reconsidered when runs were
        released: what those leave over goes to the first task in order.
        """
        self._releases = evaluator.releases()
        heapq.heapify(self._heap)
        if full_scan:
            self._begin(evaluator)
        while self._heap:
            item = heapq.heappop(self._heap)
            queue = item[4]
            if queue is None:
                if isinstance(item[5], Branch):
                    self._descend(evaluator, item[5], item)
                    continue
            elif not self._is_due(evaluator, queue, item):
                continue
            entry = self._entry(item)
            if entry is None:
                self._next(item)
            elif entry.rank != item[0] or (not self._keyed and entry.key != item[1]):
                # An AUTO task's true rank; or its owner was served on the way.
                heapq.heappush(self._heap, (*entry[:3], *item[3:]))
            else:
                outcome = evaluator.evaluate(entry)
                if outcome is Outcome.OVER:
                    return
                self._reconsider(evaluator)
                self._continue_after(item, entry, outcome)

    def _continue_after(self, item: Item, entry: Entry, outcome: Outcome) -> None:
        """Continue with the queue of a task that was evaluated, or leave it for later."""
        if outcome is Outcome.SERVED:
            for each in self._behind.pop(entry.task.owner, ()):
                heapq.heappush(self._heap, each)
        if outcome is Outcome.STUCK:
            equivalents = entry.rank, entry.shape, entry.cluster
            self._stuck.setdefault(equivalents, []).append(item)
        elif outcome is Outcome.BEHIND:
            self._behind.setdefault(entry.task.owner, []).append(item)
        elif outcome is not Outcome.LIMITED:
            self._next(item)

    def _is_due(self, evaluator: Evaluator, queue: Queue, item: Item) -> bool:
        """True if a task of a queue is to be evaluated now; else its queue is stored for later."""
        weight, shape, scope = queue.name
        equivalents = self._stuck.get((item[0], shape, scope[0]))
        if equivalents is not None:
            equivalents.append(item)
            return False
        if weight == AUTO:
            return True
        ask = weight, shape, scope[0]
        if self._keyed and not self._fixed:
            rank = evaluator.rank(*ask)
            if rank != item[0]:
                heapq.heappush(self._heap, (rank, *item[1:]))
                return False
        needed = evaluator.units_needed(*ask)
        if needed > evaluator.units_available():
            self._skipped = self._skipped or []
            insort(self._skipped, _Skipped(needed, item), key=_units_needed)
            return False
        return True

    def _descend(self, evaluator: Evaluator, branch: Branch, item: Item) -> None:
        """Add the first row of a branch, and what lies beside it, as far as tasks can move."""
        weight, cluster = branch.group
        rank = item[0] if self._fixed else evaluator.rank(weight, branch.least, cluster)
        if rank != item[0]:
            heapq.heappush(self._heap, (rank, *item[1:]))
            return
        tree: Tree = branch
        evaluated_least: Shape | None = None
        while isinstance(tree, Branch):
            if tree.least != evaluated_least:
                evaluated_least = tree.least
                needed = evaluator.units_needed(weight, evaluated_least, cluster)
                if needed > evaluator.units_available():
                    self._skipped = self._skipped or []
                    insort(self._skipped, _Skipped(needed, tree.items(rank)[0]), key=_units_needed)
                    return
            low = tree.low.first == tree.first
            tree, other = (tree.low, tree.high) if low else (tree.high, tree.low)
            for each in other.items(rank):
                heapq.heappush(self._heap, each)
        for each in tree.items(rank):
            heapq.heappush(self._heap, each)

    def _entry(self, item: Item) -> Entry | None:
        """The entry of an item as it is now; None: it is not evaluated, or it is a branch."""
        _, _, task_id, place, queue, individual = item
        if individual is not None:
            if isinstance(individual, Branch):
                return None
            if self._fixed and not individual.task.is_auto:
                return individual
        if queue is not None and task_id in self._individual:
            # It is evaluated individually.
            return None
        # The key of the queue, not the one that it has in the order of this round.
        own = queue.keys[place][0] if queue is not None else None
        return self._make_entry(task_id, own)

    def _reconsider(self, evaluator: Evaluator) -> None:
        """Reconsider queues that were passed over: runs that were released may leave enough."""
        if (releases := evaluator.releases()) == self._releases:
            return
        if releases[1] != self._releases[1] and not self._fixed:
            self._recompute_ranks(evaluator)
        self._releases = releases
        for equivalents in [each for each in self._stuck if evaluator.fits_again(*each)]:
            for item in self._stuck.pop(equivalents):
                heapq.heappush(self._heap, item)
        if self._skipped is None:
            self._begin(evaluator)
        else:
            # Less may be available than before, and yet enough in one place.
            self._resume(evaluator)

    def _recompute_ranks(self, evaluator: Evaluator) -> None:
        """Recompute ranks: a withdrawn promise may let a guarantee cover others better."""
        heap, self._heap = self._heap, []
        for item in heap:
            entry, branch = self._entry(item), item[5]
            if entry is not None:
                self._heap.append((*entry[:3], *item[3:]))
            elif isinstance(branch, Branch):
                weight, cluster = branch.group
                self._heap.append((evaluator.rank(weight, branch.least, cluster), *item[1:]))
            else:
                self._heap.append(item)
        heapq.heapify(self._heap)

    def _begin(self, evaluator: Evaluator) -> None:
        """Add every queue for which enough is available."""
        self._skipped = []
        for group in self._queues.groups:
            classes = self._queues.classes(group, evaluator.order)
            self._add_group(evaluator, group, range(len(classes)))
        heapq.heapify(self._heap)
        self._skipped.sort(key=_units_needed)

    def _resume(self, evaluator: Evaluator) -> None:
        """Add the skipped queues for which enough is available now."""
        skipped = self._skipped or []
        self._skipped = []
        for each in skipped:
            if each.item is None:
                self._add_group(evaluator, each.group, range(each.start, each.end))
            else:
                # Its need is compared when it is due.
                self._heap.append(each.item)
        heapq.heapify(self._heap)
        self._skipped.sort(key=_units_needed)

    def _add_group(self, evaluator: Evaluator, group: Group, which: range) -> None:
        """Add the queues of a level and virtual cluster for which enough is available."""
        weight, cluster = group
        assert self._skipped is not None, "its callers begin with a list"
        classes, larger_needs_more = (
            self._queues.classes(group, evaluator.order),
            evaluator.larger_needs_more(weight),
        )
        units_available = evaluator.units_available()
        spread = nextafter(units_available, inf)
        # Where the scheduler chooses the level, or owners count, the rank and the key are known
        # when the entry is made.
        known = weight != AUTO and self._keyed
        for place in which:
            shapes = classes[place]
            top = shapes.top
            assert top is not None, "a class without tasks is forgotten"
            least = top.least
            needed = -inf if weight == AUTO else evaluator.units_needed(weight, least, cluster)
            if needed <= units_available:
                if known:
                    self._heap += top.items(evaluator.rank(weight, least, cluster))
                else:
                    for row in shapes:
                        self._heap += row.items(RANK_FIRST)
            elif larger_needs_more and needed > spread:
                # Those after it are larger and need more.
                self._skipped.append(_Skipped(needed, None, group, place, which.stop))
                return
            else:
                self._skipped.append(_Skipped(needed, None, group, place, place + 1))

    def _next(self, item: Item) -> None:
        rank, _, _, place, queue, _ = item
        if queue is not None and place + 1 < len(queue.keys):
            key, task_id = queue.keys[place + 1]
            heapq.heappush(self._heap, (rank, key, task_id, place + 1, queue, None))
