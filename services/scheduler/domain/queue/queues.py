"""The waiting tasks of one pool, in order, kept so that evaluating them costs what could move.

Equivalent tasks (same level, same shape, same limits) form a *queue*. The queues of one level,
virtual cluster and shape form a *row*, sorted by their heads. If the head of a row finds no place,
none behind it does, so a round evaluates heads, however long the queues are.

Rows whose shapes differ only in CPUs and memory form a *shape class*. Memory is requested by the
byte, so there may be as many shapes as tasks. A class keeps its shapes in a binary tree by the bits
of their requests. Each *branch* knows the first task below it and the smallest request of any shape
below it. If a task with the smallest request finds no place, no task of that branch does, so
``walk.py`` visits only branches in which something may move.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from services.scheduler.domain.model.values import SHAPES_KEPT_MAX, Key, Shape
from services.scheduler.domain.queue.entry import Entry

# Whose limits count: (virtual cluster, owner, team); all empty where nothing is limited.
LimitScope: TypeAlias = tuple[str, str, str]
NO_SCOPE: LimitScope = ("", "", "")
# In place of a level's weight: the scheduler chooses the level.
AUTO = -1


# A weight and a virtual cluster: those with a guarantee may take more than others.
Group: TypeAlias = tuple[int, str]


class QueueName(NamedTuple):
    """What the tasks of a queue have in common."""

    weight: int
    shape: Shape
    scope: LimitScope


def class_of(shape: Shape) -> Shape:
    """The shape without amounts, which names its class.

    A shape that avoids nodes is a class of its own: which of them it can do without depends on the
    amounts, so one that asks for less may find fewer nodes. So is one of several sizes.
    """
    if shape.avoids or shape.parts or not (shape.cpus or shape.memory_bytes):
        return shape
    return shape._replace(cpus=0.0, memory_bytes=0)


@lru_cache(maxsize=SHAPES_KEPT_MAX)
def _code(shape: Shape) -> int:
    """The bits of both amounts in turn, the highest first, so that near codes are near in both."""
    cpus, memory = shape.resources
    width = max(cpus.bit_length(), memory.bit_length(), 1)
    pairs = zip(f"{cpus:0{width}b}", f"{memory:0{width}b}", strict=True)
    return int("".join(map("".join, pairs)), 2)


class ShapeRow:
    """The queues of the shapes that ask for the same amounts, sorted by their heads."""

    __slots__ = ("code", "heads", "least", "parent")

    def __init__(self, code: int, shape: Shape) -> None:
        self.code = code
        # One of them; all ask for the same.
        self.least = shape
        self.heads: list[Head] = []
        self.parent: Branch | None = None

    @property
    def first(self) -> Key:
        """The first task of all queues."""
        return self.heads[0][:2]

    def items(self, rank: int) -> list[Item]:
        """What a walk visits: the first task of each queue."""
        return [(rank, key, task_id, 0, queue, None) for key, task_id, queue in self.heads]


class Branch:
    """Rows that have the higher bits of their codes in common, parted by one bit."""

    __slots__ = ("_least", "bit", "first", "group", "high", "low", "parent")

    def __init__(
        self, group: Group, bit: int, low: Tree, high: Tree, parent: Branch | None
    ) -> None:
        self.group = group
        self.bit = bit
        self.low, self.high = low, high
        self.parent = parent
        self.first = min(low.first, high.first)
        self._least: Shape | None = None
        low.parent = high.parent = self

    @property
    def least(self) -> Shape:
        """A shape that asks for as little as any below, of each resource."""
        if self._least is None:
            low, high = self.low.least, self.high.least
            self._least = low._replace(
                cpus=min(low.cpus, high.cpus),
                memory_bytes=min(low.memory_bytes, high.memory_bytes),
            )
        return self._least

    def items(self, rank: int) -> list[Item]:
        """What a walk visits: the branch, as early as the first task below it."""
        return [(rank, *self.first, 0, None, self)]

    def refresh(self, *, shapes: bool) -> None:
        """A first task below changed; ``shapes``: rows came or went."""
        branch: Branch | None = self
        while branch is not None:
            first = min(branch.low.first, branch.high.first)
            if first == branch.first and not shapes:
                return
            branch.first = first
            if shapes:
                branch._least = None  # noqa: SLF001 - its own kind
            branch = branch.parent

    def reorder(self) -> None:
        """The first tasks of all rows below may have changed; no deeper than codes have bits."""
        for each in (self.low, self.high):
            if isinstance(each, Branch):
                each.reorder()
        self.first = min(self.low.first, self.high.first)


Tree: TypeAlias = ShapeRow | Branch


class ShapeClass:
    """The rows of one class, as a tree; the tree is the same in whatever order they came."""

    __slots__ = ("_group", "_rows", "top")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._rows: dict[int, ShapeRow] = {}
        self.top: Tree | None = None

    def __iter__(self) -> Iterator[ShapeRow]:
        """All rows, in no order."""
        return iter(self._rows.values())

    def row(self, shape: Shape) -> ShapeRow:
        """The row of a shape; a new one is without tasks, and ``add`` puts it into the tree."""
        code = _code(shape) if shape.cpus or shape.memory_bytes else 0
        return self._rows.get(code) or ShapeRow(code, shape)

    def add(self, row: ShapeRow) -> None:
        """Put a new row, which has its first task, into the tree."""
        self._rows[row.code] = row
        if self.top is None:
            self.top = row
            return
        near: Tree = self.top
        while isinstance(near, Branch):
            near = near.high if row.code & near.bit else near.low
        # The highest bit in which it differs from all others.
        bit = 1 << ((row.code ^ near.code).bit_length() - 1)
        node: Tree = self.top
        while isinstance(node, Branch) and node.bit > bit:
            node = node.high if row.code & node.bit else node.low
        parent = node.parent
        low, high = (node, row) if row.code & bit else (row, node)
        self._replace(parent, node, Branch(self._group, bit, low, high, parent))

    def remove(self, row: ShapeRow) -> None:
        """Take a row out that has no task left."""
        del self._rows[row.code]
        branch = row.parent
        if branch is None:
            self.top = None
            return
        other = branch.low if branch.high is row else branch.high
        other.parent = branch.parent
        self._replace(branch.parent, branch, other)

    def reorder(self) -> None:
        """The first tasks of all rows may have changed."""
        if isinstance(self.top, Branch):
            self.top.reorder()

    def _replace(self, parent: Branch | None, old: Tree, new: Tree) -> None:
        if parent is None:
            self.top = new
            return
        if parent.low is old:
            parent.low = new
        else:
            parent.high = new
        parent.refresh(shapes=True)


class Queue:
    """Waiting tasks that differ only in their keys; sorted."""

    __slots__ = ("keys", "name", "row")

    def __init__(self, name: QueueName, row: ShapeRow) -> None:
        self.name = name
        self.row = row
        self.keys: list[Key] = []


# A queue with the key of its head in front.
Head: TypeAlias = tuple[float, str, Queue]


def _first_two(head: Head) -> Key:
    return head[0], head[1]


# Rank, key, id, place in its queue (LATE: before the first), the queue; without a queue the late
# entry, or a branch of a class of shapes with the first task below it.
Item: TypeAlias = tuple[int, float, str, int, Queue | None, Entry | Branch | None]
INDIVIDUAL = -1


class Queues:
    """All queues of a pool."""

    def __init__(self) -> None:
        self._by_name: dict[QueueName, Queue] = {}
        # The shapes of each group by class; and the classes of a group in order, as asked.
        self.groups: dict[Group, dict[Shape, ShapeClass]] = {}
        self._ordered: dict[Group, list[ShapeClass]] = {}
        # The queues of an owner, and of a team, where queues are kept by these.
        self._owned: dict[str, dict[QueueName, Queue]] = {}
        self._of_team: dict[str, dict[QueueName, Queue]] = {}
        self.length = 0

    def add(self, name: QueueName, key: Key) -> None:
        """Put a task where its key says."""
        self.length += 1
        queue = self._by_name.get(name)
        if queue is None:
            self._begin(name, key)
        elif queue.keys[0] < key:
            insort(queue.keys, key)
        else:
            self._unhead(queue)
            queue.keys.insert(0, key)
            self._head(queue)

    def remove(self, name: QueueName, key: Key) -> None:
        """Take a task out."""
        queue = self._by_name[name]
        keys = queue.keys
        self.length -= 1
        if keys[0] == key:
            self._unhead(queue)
            del keys[0]
            if keys:
                self._head(queue)
            else:
                self._end(queue)
        else:
            place = bisect_left(keys, key)
            assert keys[place] == key, "a queue is sorted by unique keys"
            del keys[place]

    def rekey(self, keyed: Callable[[list[Key]], list[Key]]) -> None:
        """Take new keys over for all tasks: ``keyed`` sorts those of a queue by their new keys.

        Costs a key and a part of a sort for each task, as all of them may change places.
        """
        for queue in self._by_name.values():
            queue.keys = keyed(queue.keys)
        for classes in self.groups.values():
            for shapes in classes.values():
                for row in shapes:
                    heads = [(*queue.keys[0], queue) for _, _, queue in row.heads]
                    row.heads = sorted(heads, key=_first_two)
                shapes.reorder()

    def _begin(self, name: QueueName, key: Key) -> None:
        """The first task of a queue comes."""
        shapes = self._class(name)
        row = shapes.row(name.shape)
        queue = self._by_name[name] = Queue(name, row)
        queue.keys.append(key)
        _, owner, team = name.scope
        if owner:
            self._owned.setdefault(owner, {})[name] = queue
        if team:
            self._of_team.setdefault(team, {})[name] = queue
        if row.heads:
            self._head(queue)
        else:
            row.heads.append((*key, queue))
            shapes.add(row)

    def _end(self, queue: Queue) -> None:
        """No task of the queue is left."""
        name, row = queue.name, queue.row
        del self._by_name[name]
        _, owner, team = name.scope
        if owner:
            _drop(self._owned, owner, name)
        if team:
            _drop(self._of_team, team, name)
        if row.heads:
            if row.parent is not None:
                row.parent.refresh(shapes=False)
            return
        group = name.weight, name.scope[0]
        classes, named = self.groups[group], class_of(name.shape)
        classes[named].remove(row)
        if classes[named].top is None:
            del classes[named]
            self._ordered.pop(group, None)
            if not classes:
                del self.groups[group]

    def _class(self, name: QueueName) -> ShapeClass:
        """The class that a queue belongs to."""
        group = name.weight, name.scope[0]
        classes, named = self.groups.setdefault(group, {}), class_of(name.shape)
        found = classes.get(named)
        if found is None:
            found = classes[named] = ShapeClass(group)
            self._ordered.pop(group, None)
        return found

    def classes(self, group: Group, size: Callable[[Shape], float]) -> list[ShapeClass]:
        """The classes of a group, the smallest gangs first; ``size`` never changes for a shape."""
        found = self._ordered.get(group)
        if found is None:
            classes = self.groups[group]
            found = self._ordered[group] = [classes[each] for each in sorted(classes, key=size)]
        return found

    def owned(self, owner: str) -> Iterable[Queue]:
        """The queues of an owner, in no order; none where queues are not kept by owner."""
        return self._owned.get(owner, {}).values()

    def of_team(self, team: str) -> Iterable[Queue]:
        """The queues of a team, in no order; none where queues are not kept by team."""
        return self._of_team.get(team, {}).values()

    @staticmethod
    def _head(queue: Queue) -> None:
        """The queue has another first task."""
        row = queue.row
        insort(row.heads, (*queue.keys[0], queue))
        if row.parent is not None:
            row.parent.refresh(shapes=False)

    @staticmethod
    def _unhead(queue: Queue) -> None:
        heads = queue.row.heads
        place = bisect_left(heads, queue.keys[0])  # type: ignore[arg-type]  # the first two decide
        assert heads[place][2] is queue, "a row is sorted by unique heads"
        del heads[place]

    def __iter__(self) -> Iterator[tuple[QueueName, Key]]:
        for name, queue in self._by_name.items():
            for key in queue.keys:
                yield name, key


def _drop(queues: dict[str, dict[QueueName, Queue]], of: str, name: QueueName) -> None:
    del queues[of][name]
    if not queues[of]:
        del queues[of]
