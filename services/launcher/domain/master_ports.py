"""The range of ports from which the ranks of each gang get theirs. Pure; made by ``main.py``.

Ports are leased round-robin, so that a port that was just returned rests before it is used again.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from ``first`` to ``last``, both included."""

    first: int
    last: int

    def next_free(self, after: int, taken: AbstractSet[int]) -> int | None:
        """The first port behind ``after``, going round, that is not taken; None if all are."""
        count = self.last - self.first + 1
        start = after + 1 - self.first
        for step in range(count):
            port = self.first + (start + step) % count
            if port not in taken:
                return port
        return None


MASTER_PORTS = PortRange(20_000, 27_999)
