"""Virtual time for ``decide``: the events to come, and rounds of decisions at each moment.

It drives the forecasts of ``explain`` and the policy lab. Its users say what an event is, what it
does, and how a plan is committed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from copy import copy
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Plan

# At one moment decisions end after a few rounds, or never.
ROUNDS_MAX = 10_000

Event = TypeVar("Event")


class VirtualClock(Generic[Event]):
    """The time of one index, in seconds since ``origin``."""

    def __init__(self, index: Index, origin: datetime) -> None:
        self.index = index
        self.origin = origin
        self.seconds = 0.0
        # When time alone requires the next decision.
        self.due_s: float | None = None
        # (when, what comes first at one moment, number, event)
        self._events: list[tuple[float, int, int, Event]] = []
        self._count = 0

    def copy(self, index: Index) -> VirtualClock[Event]:
        """The same moment and events for a copy of the index."""
        twin = copy(self)
        twin.index = index
        twin._events = list(self._events)  # noqa: SLF001 - of the same class
        return twin

    @property
    def now(self) -> datetime:
        """The time of the decisions."""
        return self.origin + timedelta(seconds=self.seconds)

    def at(self, seconds: float, event: Event, rank: int = 0) -> None:
        """Schedule an event; at one moment the lowest rank happens first."""
        self._count += 1
        heapq.heappush(self._events, (seconds, rank, self._count, event))

    def next_times(self) -> list[float]:
        """When the next event happens, and when time alone requires a decision."""
        times = [self._events[0][0]] if self._events else []
        return times if self.due_s is None else [*times, max(self.due_s, self.seconds)]

    def happening(self) -> Iterator[Event]:
        """Take the events that are due now, in order."""
        while self._events and self._events[0][0] <= self.seconds:
            yield heapq.heappop(self._events)[3]

    def settle(self, commit: Callable[[Snapshot, Plan], bool]) -> bool:
        """Decide at this moment until ``commit`` returns False; returns False if it never does."""
        for _ in range(ROUNDS_MAX):
            snapshot = Snapshot.view(self.index)
            plan = decide(snapshot, self.now)
            self.index.settle(plan)
            due_at = plan.due_at
            self.due_s = None if due_at is None else (due_at - self.origin).total_seconds()
            if not commit(snapshot, plan):
                return True
        return False
