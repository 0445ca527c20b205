"""The waiting tasks of one pool in the order in which the scheduler gives them nodes, for listing.

``pool.py`` keeps it beside ``queues.py``, ``explain/queue_page.py`` reads it. The queues hold what
may *move* together, and there may be as many of them as tasks. The classes here hold what is
*ordered* together, and there are a handful. So any page of the queue, and the position of its
first task, cost a search in each class.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from services.scheduler.domain.model.values import Key, Shape
from services.scheduler.domain.queue.queues import AUTO, LimitScope, QueueName, class_of


class OrderClass(NamedTuple):
    """What waiting tasks have in common whose order among themselves is that of their keys."""

    weight: int
    # Only the parts that a rank or a key depends on; the others are empty.
    scope: LimitScope
    shape: Shape | None


class WaitingOrder:
    """The keys of each class, sorted. A change costs a search in one list.

    After ``forget`` it keeps nothing until ``refresh``, which whoever reads it calls: where all
    keys change at once, only a listing pays for their new order.
    """

    def __init__(self, *, by_user: bool, clusters: bool) -> None:
        self._by_user = by_user
        self._clusters = clusters
        self._classes: dict[OrderClass, list[Key]] = {}
        self._is_known = True

    def _class(self, name: QueueName) -> OrderClass:
        """The class of a queue. The rank of an AUTO task, or of one in a virtual cluster, depends
        on its size and on whose limits count; CPUs and memory never matter."""
        weight, shape, scope = name
        if weight == AUTO or self._clusters:
            return OrderClass(weight, scope, class_of(shape))
        return OrderClass(weight, ("", scope[1] if self._by_user else "", ""), None)

    @property
    def classes(self) -> Mapping[OrderClass, list[Key]]:
        """The sorted keys by class; to be read only."""
        return self._classes

    def add(self, name: QueueName, key: Key) -> None:
        """Add a task of a queue."""
        if not self._is_known:
            return
        insort(self._classes.setdefault(self._class(name), []), key)

    def remove(self, name: QueueName, key: Key) -> None:
        """Remove a task that was added with this key."""
        if not self._is_known:
            return
        of = self._class(name)
        keys = self._classes[of]
        place = bisect_left(keys, key)
        assert keys[place] == key, "what was added is there"
        del keys[place]
        if not keys:
            del self._classes[of]

    def forget(self) -> None:
        """All tasks have new keys."""
        self._classes.clear()
        self._is_known = False

    def refresh(self, waiting: Iterable[tuple[QueueName, Key]]) -> None:
        """Take the tasks over again if they were forgotten."""
        if self._is_known:
            return
        self._is_known = True
        for name, key in waiting:
            self._classes.setdefault(self._class(name), []).append(key)
        for keys in self._classes.values():
            keys.sort()
