"""A small cache of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values that were used last; used by several threads."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def forget(self, is_gone: Callable[[K], bool]) -> None:
        """Forget the values of these keys."""
        with self._lock:
            for key in [key for key in self._kept if is_gone(key)]:
                del self._kept[key]

    def put(self, key: K, value: V) -> None:
        """Remember it, and forget the one that was not used for longest."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self._count_max:
                self._kept.popitem(last=False)
