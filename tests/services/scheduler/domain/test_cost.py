"""An event costs what it changes, however much there is besides; calls of functions are counted."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from benchmarks.scaled_clusters import KINDS, Event, Kind

# So many times as many calls are the same cost: hash tables and sorted lists grow, too.
SAME = 1.4


def calls(event: Event) -> int:
    """The calls of functions, built-in ones too, that an event makes."""
    found = 0

    def note(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal found
        found += what in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        event()
    finally:
        sys.setprofile(before)
    return found


def least_calls(kind: Kind, size: int) -> int:
    """The fewest calls of an event after the first two, which fill caches."""
    event = kind.build(size)
    event()
    event()
    return min(calls(event) for _ in range(4))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_event_costs_what_it_changes(kind: Kind) -> None:
    small = least_calls(kind, kind.small_test)
    large = least_calls(kind, kind.large_test)
    if kind.calls_each_max:
        each = (large - small) / (kind.large_test - kind.small_test)
        assert each <= kind.calls_each_max, f"{each} calls for each of the {kind.plentiful}"
    else:
        assert large <= SAME * small, f"{large} calls instead of {small}: more {kind.plentiful}"
