"""How much CPU or memory is left on the nodes of one group: one ``Left`` for each resource.

``stock.py`` keeps two of them. The nodes with at least so much left are found as one set, from
sets of nodes by ranges of what is left, so the cost follows the number of ranges and not the
number of nodes or of different requests. Amounts are whole numbers (thousandths of a CPU, bytes),
so that adding and subtracting them in any order gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BITS = 6
_LOW = (1 << _BITS) - 1
# Ranges of what is left are so many for each doubling, as a power of two.
_FINE = 4


def _range(amount: int) -> int:
    """The range that an amount lies in; a larger amount never lies in a lower range."""
    if amount <= 0:
        return -1
    length = amount.bit_length()
    fine = amount >> (length - 1 - _FINE) if length > _FINE else amount << (1 + _FINE - length)
    return (length << _FINE) + (fine & ((1 << _FINE) - 1))


class Left:
    """What is left of one resource, by place; None where the node does not report it.

    It may be less than nothing: what is held and promised to another counts for both.
    """

    __slots__ = ("_by_place", "_places", "_ranges", "_unlimited")

    def __init__(
        self,
        by_place: list[list[int | None]],
        places: dict[int, int],
        ranges: dict[int, dict[int, int]],
        unlimited: int,
    ) -> None:
        # In chunks that are replaced and never changed.
        self._by_place = by_place
        # The places of each range, and those of each amount in a range (replaced, never changed).
        self._places = places
        self._ranges = ranges
        self._unlimited = unlimited

    @staticmethod
    def of(totals: Sequence[int | None]) -> Left | None:
        """Everything is left; None if no node reports the resource."""
        if all(each is None for each in totals):
            return None
        step = 1 << _BITS
        chunks = [list(totals[start : start + step]) for start in range(0, len(totals), step)]
        found = Left(chunks, {}, {}, 0)
        by_amount: dict[int, int] = {}
        for place, each in enumerate(totals):
            if each is None:
                found._unlimited |= 1 << place
            else:
                by_amount[each] = by_amount.get(each, 0) | 1 << place
        for amount, there in by_amount.items():
            found._toggle(amount, there)
        return found

    def copy(self) -> Left:
        """An independent copy."""
        ranges = self._ranges.copy()
        return Left(self._by_place.copy(), self._places.copy(), ranges, self._unlimited)

    def at(self, place: int) -> int | None:
        """What is left on one node; None: it does not report it."""
        return self._by_place[place >> _BITS][place & _LOW]

    def add(self, places: Iterable[int], more: int) -> None:
        """Change what is left on these nodes, each named once; ``more`` may be negative."""
        chunks = self._by_place
        copied: set[int] = set()
        moved: dict[int, int] = {}
        for place in places:
            index, at = place >> _BITS, place & _LOW
            before = chunks[index][at]
            if before is None:
                continue
            if index not in copied:
                copied.add(index)
                chunks[index] = chunks[index].copy()
            chunks[index][at] = before + more
            moved[before] = moved.get(before, 0) | 1 << place
        for before, there in moved.items():
            self._toggle(before, there)
            self._toggle(before + more, there)

    def reset(self, place: int, total: int | None) -> None:
        """All of the node is left, and so much that is."""
        before = self.at(place)
        index, bit = place >> _BITS, 1 << place
        self._by_place[index] = self._by_place[index].copy()
        self._by_place[index][place & _LOW] = total
        if before is None:
            self._unlimited &= ~bit
        else:
            self._toggle(before, bit)
        if total is None:
            self._unlimited |= bit
        else:
            self._toggle(total, bit)

    def _toggle(self, amount: int, there: int) -> None:
        """Put places into the set of an amount, or take them out of it."""
        which = _range(amount)
        amounts: dict[int, int] = self._ranges.get(which, {}).copy()
        if own := amounts.get(amount, 0) ^ there:
            amounts[amount] = own
        else:
            del amounts[amount]
        if amounts:
            self._ranges[which] = amounts
            self._places[which] = self._places.get(which, 0) ^ there
        else:
            del self._ranges[which], self._places[which]

    def at_least(self, amount: int) -> int:
        """The places with so much left, those without a limit included."""
        lowest, found = _range(amount), self._unlimited
        for which, there in self._places.items():
            if which > lowest:
                found |= there
        for each, there in self._ranges.get(lowest, {}).items():
            if each >= amount:
                found |= there
        return found
