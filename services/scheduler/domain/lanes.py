"""The waiting tasks of one pool, in order, kept so that a look at them costs what could move.

Tasks that are alike for the scheduler (same level, same shape, same limits) form a queue; the
queues of one level, virtual cluster and shape form a row, sorted by their heads. If the head of a
row finds no place, none behind it does, so a round looks at heads, however long the queues are.
Rows whose shapes differ only in CPUs and memory form a class (``shape_class.py``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from services.scheduler.domain.model.values import Shape
from services.scheduler.domain.shape_class import Row, ShapeClass, class_of

# The order key in seconds, and the id, which makes it unique.
Key: TypeAlias = tuple[float, str]
# Whose limits count: (virtual cluster, owner, team); all empty where nothing is limited.
Who: TypeAlias = tuple[str, str, str]
NOBODY: Who = ("", "", "")
# In place of a level's weight: the scheduler chooses the level.
AUTO = -1


# A weight and a virtual cluster: those with a guarantee may take more than others.
Group: TypeAlias = tuple[int, str]


class QueueName(NamedTuple):
    """What the tasks of a queue have in common."""

    weight: int
    shape: Shape
    who: Who


class Queue:
    """Waiting tasks that only their keys tell apart; sorted."""

    __slots__ = ("keys", "name", "row")

    def __init__(self, name: QueueName, row: Row) -> None:
        self.name = name
        self.row = row
        self.keys: list[Key] = []


# A queue with the key of its head in front.
Head: TypeAlias = tuple[float, str, Queue]


def _first_two(head: Head) -> Key:
    return head[0], head[1]


class Lanes:
    """All queues of a pool."""

    def __init__(self) -> None:
        self._queues: dict[QueueName, Queue] = {}
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
        queue = self._queues.get(name)
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
        queue = self._queues[name]
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
        for queue in self._queues.values():
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
        queue = self._queues[name] = Queue(name, row)
        queue.keys.append(key)
        _, owner, team = name.who
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
        del self._queues[name]
        _, owner, team = name.who
        if owner:
            _drop(self._owned, owner, name)
        if team:
            _drop(self._of_team, team, name)
        if row.heads:
            if row.parent is not None:
                row.parent.refresh(shapes=False)
            return
        group = name.weight, name.who[0]
        classes, named = self.groups[group], class_of(name.shape)
        classes[named].remove(row)
        if classes[named].top is None:
            del classes[named]
            self._ordered.pop(group, None)
            if not classes:
                del self.groups[group]

    def _class(self, name: QueueName) -> ShapeClass:
        """The class that a queue belongs to."""
        group = name.weight, name.who[0]
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
        for name, queue in self._queues.items():
            for key in queue.keys:
                yield name, key


def _drop(queues: dict[str, dict[QueueName, Queue]], of: str, name: QueueName) -> None:
    del queues[of][name]
    if not queues[of]:
        del queues[of]
