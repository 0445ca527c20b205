"""Turns counters into rates. Pure: the caller gives the time."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field


@dataclass
class Rates:
    """The newest value of each counter, and when it was read."""

    _last: dict[Hashable, tuple[float, float]] = field(
        default_factory=dict[Hashable, tuple[float, float]]
    )

    def rate(self, counter: Hashable, value: float | None, now_s: float) -> float | None:
        """Return the growth per second since the last value; None for the first one, and for a
        counter that went backwards because it began again."""
        if value is None:
            return None
        before = self._last.get(counter)
        self._last[counter] = (value, now_s)
        if before is None or now_s <= before[1] or value < before[0]:
            return None
        return (value - before[0]) / (now_s - before[1])

    def keep(self, counters: Collection[Hashable]) -> None:
        """Forget all other counters."""
        for gone in self._last.keys() - set(counters):
            del self._last[gone]
