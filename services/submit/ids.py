"""Makes task ids: they sort by time, and are safe in URLs, DNS names and subjects.

``t``, then 48 bits of milliseconds and 50 random bits in lower-case base32 whose digits sort before
its letters, so that text order is time order. Used by ``main.py``; the domain only receives ids.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

ALPHABET = "234567abcdefghijklmnopqrstuvwxyz"
TIME_DIGITS = 10
RANDOM_DIGITS = 10
_BITS = 5


class TimeSortedIds:
    """Makes ids that only grow within one process, also within a millisecond."""

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        """``random_bits(n)`` gives n random bits: ``secrets.randbits``, or a seeded generator's."""
        self._random_bits = random_bits
        self._last = 0

    def __call__(self, now: datetime) -> str:
        """A new id."""
        milliseconds = int(now.timestamp() * 1000)
        random_bits = RANDOM_DIGITS * _BITS
        number = (milliseconds << random_bits) | self._random_bits(random_bits)
        self._last = max(number, self._last + 1)
        return "t" + _base32(self._last, TIME_DIGITS + RANDOM_DIGITS)


def _base32(number: int, digits: int) -> str:
    mask = (1 << _BITS) - 1
    return "".join(
        ALPHABET[(number >> (_BITS * place)) & mask] for place in reversed(range(digits))
    )
