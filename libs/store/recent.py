"""A cache of the rows that the leader wrote last, for tables that only the leader writes.

``core`` keeps it, and ``unit`` reads it in the leader's transactions. A task often has a handful of
events within seconds, and each of them reads the rows that the one before has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libs.store.rows import Key, Row, Shape

ROWS_MAX = 4096


class Recent:
    """The newest rows of some tables; None stands for a deleted row."""

    def __init__(self, shapes: Iterable[Shape], rows_max: int = ROWS_MAX) -> None:
        self._rows: dict[Shape, dict[Key, Row | None]] = {shape: {} for shape in shapes}
        self._rows_max = rows_max

    def of(self, shape: Shape) -> Mapping[Key, Row | None]:
        """Return the cached rows of a table; an empty mapping for a table without a cache."""
        return self._rows.get(shape, {})

    def land(self, writes: Mapping[Shape, Mapping[Key, Row | None]]) -> None:
        """Add the writes of a committed transaction, and drop the oldest rows."""
        for shape, rows in writes.items():
            kept = self._rows.get(shape)
            if kept is None:
                continue
            for key, row in rows.items():
                kept.pop(key, None)
                kept[key] = row
            while len(kept) > self._rows_max:
                del kept[next(iter(kept))]

    def clear(self) -> None:
        """Forget all rows, because another leader may have written since."""
        for kept in self._rows.values():
            kept.clear()
