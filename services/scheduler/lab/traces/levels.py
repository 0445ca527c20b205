"""Numbers of a trace's own priority scale as our levels, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libs.contracts.messages import Priority

# Lowest first. ABOVE_NORMAL is used last: tasks are demoted from it after a time.
_STABLE = (
    Priority.IDLE,
    Priority.LOW,
    Priority.BELOW_NORMAL,
    Priority.NORMAL,
    Priority.HIGH,
    Priority.VERY_HIGH,
    Priority.EXTREME_HIGH,
)
_ALL = (*_STABLE[:4], Priority.ABOVE_NORMAL, *_STABLE[4:])


def level_table(numbers: Iterable[int], notes: list[str]) -> Mapping[int, Priority]:
    """A level for each number: as many levels as there are numbers, with NORMAL in the middle.

    More numbers than levels share them, neighbours together; a note says so.
    """
    ordered = sorted(set(numbers))
    if not ordered:
        return {}
    if len(ordered) <= len(_STABLE):
        middle = _STABLE.index(Priority.NORMAL)
        first = middle - (len(ordered) - 1) // 2
        levels = _STABLE[first : first + len(ordered)]
    else:
        levels = tuple(_ALL[place * len(_ALL) // len(ordered)] for place in range(len(ordered)))
        if len(ordered) > len(_ALL):
            notes.append(f"{len(ordered)} priorities share our {len(_ALL)} levels")
    return dict(zip(ordered, levels, strict=True))
