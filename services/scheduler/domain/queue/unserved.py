"""The waiting tasks of one pool by how long they go without service, the longest first.

``pool.py`` keeps it, ``starvation.py`` searches it. Equivalent tasks (one queue of ``queues.py``)
share what stops them, so the search passes over a whole queue at once: however many tasks of a user
wait for the user's quota, the next task is found as if there were one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from heapq import heappop, heappush, merge
from typing import NamedTuple

from services.scheduler.domain.model.values import Key
from services.scheduler.domain.queue.queues import QueueName


class _Place(NamedTuple):
    """A task in its queue; ids are unique, so the first two fields decide every comparison."""

    since: float
    task_id: str
    name: QueueName
    at: int


class Unserved:
    """Each queue's tasks, sorted, and the first of each queue, sorted."""

    def __init__(self) -> None:
        self._queues: dict[QueueName, list[Key]] = {}
        self._heads: list[_Place] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Key]:
        return merge(*self._queues.values())

    def add(self, name: QueueName, key: Key) -> None:
        """Add a task by since when it goes without service."""
        self._length += 1
        keys = self._queues.get(name)
        if keys is None:
            keys = self._queues[name] = []
        elif keys[0] < key:
            insort(keys, key)
            return
        else:
            self._unhead(keys[0])
        keys.insert(0, key)
        insort(self._heads, _Place(*key, name, 0))

    def remove(self, name: QueueName, key: Key) -> None:
        """Remove a task that was added with this key."""
        self._length -= 1
        keys = self._queues[name]
        place = bisect_left(keys, key)
        assert keys[place] == key, "what was added is there"
        del keys[place]
        if place:
            return
        self._unhead(key)
        if keys:
            insort(self._heads, _Place(*keys[0], name, 0))
        else:
            del self._queues[name]

    def _unhead(self, key: Key) -> None:
        # A pair sorts directly before the place that begins with it.
        place = bisect_left(self._heads, key)
        assert self._heads[place][:2] == key, "the first of each queue is among the heads"
        del self._heads[place]

    def walk(self, passed_over: Container[QueueName]) -> Iterator[tuple[Key, QueueName]]:
        """All tasks in order, but for those of the queues that the caller passes over by then."""
        following: list[_Place] = []
        heads = iter(self._heads)
        head = next(heads, None)
        while head is not None or following:
            if following and (head is None or following[0] < head):
                found = heappop(following)
            else:
                assert head is not None, "one of the two is there"
                found, head = head, next(heads, None)
            if found.name in passed_over:
                continue
            yield (found.since, found.task_id), found.name
            keys, at = self._queues[found.name], found.at + 1
            if found.name not in passed_over and at < len(keys):
                heappush(following, _Place(*keys[at], found.name, at))
