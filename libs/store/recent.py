"""The rows that a leader wrote last, of tables that only the leader writes: read without a query.

Kept by ``core``, asked by ``unit`` in the leader's transactions. A task's life is a handful of
events within seconds, and each would read the rows that the one before has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libs.store.rows import Key, Row, Shape

ROWS_MAX = 4096


class Recent:
    """For each of some tables its newest rows; None stands for one that was deleted."""

    def __init__(self, shapes: Iterable[Shape], rows_max: int = ROWS_MAX) -> None:
        self._rows: dict[Shape, dict[Key, Row | None]] = {shape: {} for shape in shapes}
        self._rows_max = rows_max

    def of(self, shape: Shape) -> Mapping[Key, Row | None]:
        """What is known of a table; nothing of most."""
        return self._rows.get(shape, {})

    def land(self, writes: Mapping[Shape, Mapping[Key, Row | None]]) -> None:
        """Note what a committed transaction wrote; the oldest rows are dropped."""
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
        """Know nothing: another leader may have written since."""
        for kept in self._rows.values():
            kept.clear()
