"""How much CPU or memory is left on the nodes of one group.

``free_nodes.py`` keeps one ``RemainingResource`` for each of the two. It finds the nodes with at
least so much left as one set, from sets of nodes by ranges of what is left, so the cost follows the
number of ranges and not the number of nodes or of different requests. Amounts are whole numbers
(thousandths of a CPU, bytes), so that adding and subtracting them in any order gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BITS = 6
_LOW = (1 << _BITS) - 1
# The number of ranges for each doubling, as a power of two.
_FINE = 4


def _range(amount: int) -> int:
    """The range of an amount; a larger amount never lies in a lower range."""
    if amount <= 0:
        return -1
    length = amount.bit_length()
    fine = amount >> (length - 1 - _FINE) if length > _FINE else amount << (1 + _FINE - length)
    return (length << _FINE) + (fine & ((1 << _FINE) - 1))


class RemainingResource:
    """What is left of one resource, by position; None where the node does not report it.

    It may be negative: what one task holds and another reserves counts for both.
    """

    __slots__ = ("_by_position", "_positions", "_ranges", "_unlimited")

    def __init__(
        self,
        by_position: list[list[int | None]],
        positions: dict[int, int],
        ranges: dict[int, dict[int, int]],
        unlimited: int,
    ) -> None:
        # In chunks that are replaced and never changed.
        self._by_position = by_position
        # The positions in each range, and at each amount of a range (replaced, never changed).
        self._positions = positions
        self._ranges = ranges
        self._unlimited = unlimited

    @staticmethod
    def of(totals: Sequence[int | None]) -> RemainingResource | None:
        """Everything is left; None if no node reports the resource."""
        if all(each is None for each in totals):
            return None
        step = 1 << _BITS
        chunks = [list(totals[start : start + step]) for start in range(0, len(totals), step)]
        found = RemainingResource(chunks, {}, {}, 0)
        by_amount: dict[int, int] = {}
        for position, each in enumerate(totals):
            if each is None:
                found._unlimited |= 1 << position
            else:
                by_amount[each] = by_amount.get(each, 0) | 1 << position
        for amount, there in by_amount.items():
            found._toggle(amount, there)
        return found

    def copy(self) -> RemainingResource:
        """An independent copy."""
        ranges = self._ranges.copy()
        return RemainingResource(
            self._by_position.copy(), self._positions.copy(), ranges, self._unlimited
        )

    def at(self, position: int) -> int | None:
        """What is left on one node; None: it does not report it."""
        return self._by_position[position >> _BITS][position & _LOW]

    def add(self, positions: Iterable[int], more: int) -> None:
        """Changes what is left on these nodes, each named once; ``more`` may be negative."""
        chunks = self._by_position
        copied: set[int] = set()
        moved: dict[int, int] = {}
        for position in positions:
            index, at = position >> _BITS, position & _LOW
            before = chunks[index][at]
            if before is None:
                continue
            if index not in copied:
                copied.add(index)
                chunks[index] = chunks[index].copy()
            chunks[index][at] = before + more
            moved[before] = moved.get(before, 0) | 1 << position
        for before, there in moved.items():
            self._toggle(before, there)
            self._toggle(before + more, there)

    def reset(self, position: int, total: int | None) -> None:
        """Sets the total of a node, all of which is left."""
        before = self.at(position)
        index, bit = position >> _BITS, 1 << position
        self._by_position[index] = self._by_position[index].copy()
        self._by_position[index][position & _LOW] = total
        if before is None:
            self._unlimited &= ~bit
        else:
            self._toggle(before, bit)
        if total is None:
            self._unlimited |= bit
        else:
            self._toggle(total, bit)

    def _toggle(self, amount: int, there: int) -> None:
        """Puts positions into the set of an amount, or takes them out of it."""
        which = _range(amount)
        amounts: dict[int, int] = self._ranges.get(which, {}).copy()
        if own := amounts.get(amount, 0) ^ there:
            amounts[amount] = own
        else:
            del amounts[amount]
        if amounts:
            self._ranges[which] = amounts
            self._positions[which] = self._positions.get(which, 0) ^ there
        else:
            del self._ranges[which], self._positions[which]

    def at_least(self, amount: int) -> int:
        """The nodes with at least so much left, those without a limit included."""
        lowest, found = _range(amount), self._unlimited
        for which, there in self._positions.items():
            if which > lowest:
                found |= there
        for each, there in self._ranges.get(lowest, {}).items():
            if each >= amount:
                found |= there
        return found
