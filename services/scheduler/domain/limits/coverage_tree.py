"""How the runs of one tree of virtual clusters are covered, kept up to date change by change.

``coverage.py`` keeps one ``Tree`` for each root. The rows lie in the order of entitlement, in
blocks. A block remembers what the virtual clusters held before it, and how much more or less each
of them could have held without another answer for any of its rows. So a run that comes or goes
costs a recount of its own block and of those few in which an answer changes; the others are only
shifted. ``VirtualClusters.counted`` computes the same without blocks, in one walk over all rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import chain
from math import inf

from services.scheduler.domain.limits.virtual_clusters import (
    UNCOVERED,
    CoverageRow,
    Depth,
    VirtualClusters,
)

# A block of more rows is cut in two, one of fewer is joined with the next.
ROWS_MAX, ROWS_MIN = 128, 32
# After this many changes everything is counted from zero, so that rounding errors do not add up.
CHANGES_MAX = 10_000
# A smaller difference is a rounding error: no task is that small.
NOTHING = 1e-9


class _Block:
    """Some rows that follow one another."""

    __slots__ = ("charged", "least", "low", "most", "rows", "stale", "start")

    def __init__(self, rows: list[CoverageRow], start: dict[str, float]) -> None:
        self.rows = rows
        # No row before this belongs here, unless it is the first block.
        self.low: tuple[object, ...] = rows[0][:3] if rows else ()
        # What virtual clusters hold before this block (without those that hold nothing), and what
        # its rows add.
        self.start = start
        self.charged: dict[str, float] = {}
        # While each holds at most ``most`` and more than ``least`` before it, its depths stay.
        self.most: dict[str, float] = {}
        self.least: dict[str, float] = {}
        self.stale = True

    def holds(self, shift: dict[str, float]) -> bool:
        """True if its depths stay the same when the holdings before it change by ``shift``."""
        if self.stale:
            return False
        for name, by in shift.items():
            held = self.start.get(name, 0.0) + by
            if not self.least.get(name, -inf) < held <= self.most.get(name, inf):
                return False
        return True

    def count(self, clusters: VirtualClusters) -> Iterator[tuple[str, Depth]]:
        """The depths of its rows; the caller must exhaust it."""
        start, held = self.start, dict(self.start)
        most, least = dict[str, float](), dict[str, float]()
        for _, _, task_id, size, name in self.rows:
            above = clusters.bounds.get(name, ())
            found = UNCOVERED
            for depth, (each, limit) in enumerate(above):
                over = held.get(each, 0.0) + size - limit
                # What may be held before the block for the same depth.
                bound = start.get(each, 0.0) - over
                if over <= 0:
                    most[each] = min(most.get(each, inf), bound)
                    for higher, _ in above[depth:]:
                        held[higher] = held.get(higher, 0.0) + size
                    found = depth
                    break
                least[each] = max(least.get(each, -inf), bound)
            yield task_id, found
        self.charged = {
            name: amount - start.get(name, 0.0)
            for name, amount in held.items()
            if amount != start.get(name, 0.0)
        }
        self.most, self.least, self.stale = most, least, False


class Tree:
    """The runs and promises of one tree."""

    def __init__(self, clusters: VirtualClusters) -> None:
        self._clusters = clusters
        self._blocks: list[_Block] = []
        self._changes = 0

    def enter(self, row: CoverageRow) -> None:
        """Add a row."""
        if not self._blocks:
            self._blocks.append(_Block([], {}))
        block = self._blocks[self._at(row)]
        insort(block.rows, row)
        block.stale = True

    def leave(self, key: tuple[int, float, str]) -> None:
        """Remove the row with these first three values."""
        block = self._blocks[self._at(key)]
        place = bisect_left(block.rows, key)  # type: ignore[type-var]  # the first three decide
        assert block.rows[place][2] == key[2], "what was put in is there"
        del block.rows[place]
        block.stale = True

    def _at(self, key: tuple[object, ...]) -> int:
        """The block in which a row lies or belongs."""
        return max(0, bisect_right(self._blocks, key[:3], key=_low) - 1)

    def __iter__(self) -> Iterator[CoverageRow]:
        """All rows, the most entitled first."""
        return chain.from_iterable([block.rows for block in self._blocks])

    def changed(self) -> Iterator[tuple[str, Depth]]:
        """The rows of all recounted blocks with their depths; the caller must exhaust it."""
        self._changes += 1
        if self._changes >= CHANGES_MAX:
            self._changes = 0
            self._blocks = [_Block(list(self), {})] if self._blocks else []
        blocks, shift, place = self._blocks, dict[str, float](), 0
        while place < len(blocks):
            block = blocks[place]
            if not shift and not block.stale:
                place += 1
                continue
            if block.stale:
                self._resize(place, block)
                if not block.rows:
                    _add(shift, block.charged, -1.0)
                    del blocks[place]
                    continue
            again = not block.holds(shift)
            if shift:
                _add(block.start, shift, 1.0)
            if again:
                _add(shift, block.charged, -1.0)
                yield from block.count(self._clusters)
                _add(shift, block.charged, 1.0)
            place += 1

    def _resize(self, place: int, block: _Block) -> None:
        """Split a block that is too long, join one that is too short with the next."""
        blocks = self._blocks
        if len(block.rows) > ROWS_MAX:
            half = ROWS_MAX // 2
            # The others begin where the whole block ended, and add nothing yet.
            end = dict(block.start)
            _add(end, block.charged, 1.0)
            rest = [
                _Block(block.rows[first : first + half], dict(end))
                for first in range(half, len(block.rows), half)
            ]
            del block.rows[half:]
            # The first block has taken whatever came before it.
            block.low = block.rows[0][:3]
            blocks[place + 1 : place + 1] = rest
        elif len(block.rows) < ROWS_MIN and place + 1 < len(blocks):
            following = blocks.pop(place + 1)
            block.rows += following.rows
            _add(block.charged, following.charged, 1.0)

    def claim(self, weight: int, size: float, name: str) -> Depth:
        """How a task that waits would be covered if lower levels held nothing.

        What ``changed`` returns has been asked for before.
        """
        own: CoverageRow = (-weight, 0.0, "", size, name)
        behind: CoverageRow = (-weight, inf, "", size, name)
        rows: list[CoverageRow] = []
        start: dict[str, float] = {}
        if self._blocks:
            block = self._blocks[self._at(behind)]
            rows, start = block.rows[: bisect_right(block.rows, behind)], block.start
        return self._clusters.counted([*rows, own], start)[own[2]]


def _add(amounts: dict[str, float], more: dict[str, float], times: float) -> None:
    """Add amounts to others in place; those that become zero are removed."""
    for name, amount in more.items():
        total = amounts.get(name, 0.0) + times * amount
        if abs(total) < NOTHING:
            amounts.pop(name, None)
        else:
            amounts[name] = total


def _low(block: _Block) -> tuple[object, ...]:
    return block.low
