"""The waiting tasks of one pool, in order, kept so that a look at them costs what could move.

Tasks that are alike for the scheduler (same level, same shape, same limits) form a queue; the
queues of one level and shape form a row, sorted by their heads. If the head of a row finds no
place, none behind it does, so a round looks at heads, however long the queues are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from services.scheduler.domain.model import Shape

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

    __slots__ = ("keys", "name")

    def __init__(self, name: QueueName) -> None:
        self.name = name
        self.keys: list[Key] = []


# A queue with the key of its head in front.
Head: TypeAlias = tuple[float, str, Queue]


def _first_two(head: Head) -> Key:
    return head[0], head[1]


class Lanes:
    """All queues of a pool."""

    def __init__(self) -> None:
        self._queues: dict[QueueName, Queue] = {}
        # By weight, then shape: the heads of the queues, sorted.
        self.rows: dict[int, dict[Shape, list[Head]]] = {}
        # How many queues there are of each shape; and the shapes of a group in order, as asked.
        self.groups: dict[Group, dict[Shape, int]] = {}
        self._shapes: dict[Group, list[Shape]] = {}
        # The queues of an owner, where queues are kept by owner.
        self._owned: dict[str, dict[QueueName, Queue]] = {}
        self.length = 0

    def add(self, name: QueueName, key: Key) -> None:
        """Put a task where its key says."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(name)
            self._group(name, 1)
        keys = queue.keys
        if keys and keys[0] < key:
            insort(keys, key)
        else:
            self._unhead(queue)
            keys.insert(0, key)
            self._head(queue)
        self.length += 1

    def remove(self, name: QueueName, key: Key) -> None:
        """Take a task out."""
        queue = self._queues[name]
        keys = queue.keys
        self.length -= 1
        if keys[0] == key:
            self._unhead(queue)
            del keys[0]
            self._head(queue)
            if not keys:
                del self._queues[name]
                self._group(name, -1)
        else:
            place = bisect_left(keys, key)
            assert keys[place] == key, "a queue is sorted by unique keys"
            del keys[place]

    def rekey(self, key: Callable[[str], float]) -> None:
        """Take new keys over for all tasks, by their ids.

        Costs a key and a part of a sort for each task, as all of them may change places.
        """
        for queue in self._queues.values():
            queue.keys = sorted([(key(task_id), task_id) for _, task_id in queue.keys])
        for rows in self.rows.values():
            for shape, row in rows.items():
                heads = [(*queue.keys[0], queue) for _, _, queue in row]
                rows[shape] = sorted(heads, key=_first_two)

    def _group(self, name: QueueName, more: int) -> None:
        group = name.weight, name.who[0]
        if owner := name.who[1]:
            if more > 0:
                self._owned.setdefault(owner, {})[name] = self._queues[name]
            else:
                del self._owned[owner][name]
                if not self._owned[owner]:
                    del self._owned[owner]
        counts = self.groups.setdefault(group, {})
        before = counts.get(name.shape, 0)
        counts[name.shape] = before + more
        if not before or not before + more:
            self._shapes.pop(group, None)
        if not counts[name.shape]:
            del counts[name.shape]
            if not counts:
                del self.groups[group]

    def shapes(self, group: Group, size: Callable[[Shape], float]) -> list[Shape]:
        """The shapes of a group, the smallest first; ``size`` never changes for a shape."""
        found = self._shapes.get(group)
        if found is None:
            found = self._shapes[group] = sorted(self.groups[group], key=size)
        return found

    def owned(self, owner: str) -> Iterable[Queue]:
        """The queues of an owner, in no order; none where queues are not kept by owner."""
        return self._owned.get(owner, {}).values()

    def _head(self, queue: Queue) -> None:
        if queue.keys:
            row = self.rows.setdefault(queue.name.weight, {}).setdefault(queue.name.shape, [])
            insort(row, (*queue.keys[0], queue))

    def _unhead(self, queue: Queue) -> None:
        if not queue.keys:
            return
        rows = self.rows[queue.name.weight]
        row = rows[queue.name.shape]
        place = bisect_left(row, queue.keys[0])  # type: ignore[arg-type]  # the first two decide
        assert row[place][2] is queue, "a row is sorted by unique heads"
        del row[place]
        if not row:
            del rows[queue.name.shape]
            if not rows:
                del self.rows[queue.name.weight]

    def weights(self) -> list[int]:
        """The weights at which somebody waits, highest first; AUTO's are not among them."""
        return sorted((weight for weight in self.rows if weight != AUTO), reverse=True)

    def __iter__(self) -> Iterator[tuple[QueueName, Key]]:
        for name, queue in self._queues.items():
            for key in queue.keys:
                yield name, key
