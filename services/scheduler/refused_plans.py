"""Node groups and tasks that are left out of decisions because they were refused: until when, and
why.

A node group is refused when deciding about it raises, the check before the commit finds its plan
wrong, or its decisions cannot be carried out; a task, when something urgent about it is.
``loop.py`` notes every round here, and leaves out what is refused until its back-off is over;
``explaining.py`` reads the reason from here. Only the leader's memory holds it: a new leader starts
counting from 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from libs.contracts.messages import Reason, ReasonCode
from libs.service.metrics import Metrics
from services.scheduler.domain.check.violations import Violation
from services.scheduler.domain.model.values import reason

declare = Metrics("scheduler")
HELD_UP = declare.counter(
    "shiftwork_scheduler_group_held_up_rounds_total",
    "Rounds in which a group's decisions were refused, from the limit of refusals in a row on",
    ["group"],
)
FAULTS_NAMED_MAX = 3
# Doubled no more often than this: the largest back-off was reached long before.
DOUBLED_MAX = 20


@dataclass
class Refusal:
    """A group, or a task, that is refused each time it is tried."""

    since: datetime
    faults: str
    again_at: datetime
    backoff: timedelta
    count: int = 0


@dataclass
class RefusedPlans:
    """The groups (or tasks) that are refused now. ``count_max`` refusals in a row are an alarm."""

    count_max: int
    # How long the first back-off is; each is twice the one before, up to the largest.
    backoff_seconds: float
    backoff_seconds_max: float
    _now: dict[str, Refusal] = field(default_factory=dict[str, Refusal])
    # Groups whose series of the metric has begun.
    _known: set[str] = field(default_factory=set[str])

    @property
    def names(self) -> frozenset[str]:
        """Everything that is refused now."""
        return frozenset(self._now)

    def know(self, groups: Collection[str]) -> None:
        """Begin the metric's series of these groups at 0."""
        for group in groups:
            if group not in self._known:
                self._known.add(group)
                HELD_UP.labels(group)

    def clear(self) -> None:
        """A new term begins."""
        self._now.clear()

    def note(self, refused: Mapping[str, Sequence[Violation]], at: datetime) -> dict[str, Refusal]:
        """A round refused these; returns those for which the rows are to be loaded again.

        That is at the limit, and then after twice as many each time: loading costs, and helps
        only where memory differs from the rows.
        """
        found: dict[str, Refusal] = {}
        for name, violations in refused.items():
            faults = sorted({each.fault.name for each in violations})
            refusal = self._now.setdefault(name, Refusal(at, "", at, timedelta()))
            refusal.faults = ", ".join(faults[:FAULTS_NAMED_MAX])
            doubled = self.backoff_seconds * 2 ** min(refusal.count, DOUBLED_MAX)
            refusal.backoff = timedelta(seconds=min(doubled, self.backoff_seconds_max))
            refusal.again_at = at + refusal.backoff
            refusal.count += 1
            if refusal.count >= self.count_max:
                HELD_UP.labels(next((each.group for each in violations), "") or name).inc()
            multiple, rest = divmod(refusal.count, self.count_max)
            if not rest and multiple.bit_count() == 1:
                found[name] = refusal
        return found

    def waiting(self, now: datetime) -> frozenset[str]:
        """The groups (or tasks) whose back-off is not over."""
        # A clock that was set back must not make the wait longer.
        return frozenset(
            name
            for name, each in self._now.items()
            if timedelta() < each.again_at - now <= each.backoff
        )

    def next_at(self, now: datetime) -> datetime | None:
        """The time at which the first refused group or task is tried again."""
        waiting = self.waiting(now)
        return min((self._now[name].again_at for name in waiting), default=None)

    def passed(self, names: Collection[str]) -> dict[str, Refusal]:
        """These passed; returns those that were refused before."""
        over = {name: self._now.pop(name) for name in names if name in self._now}
        return {name: each for name, each in over.items() if each.count >= self.count_max}

    def first(self, refused: Collection[str]) -> bool:
        """True if one of these is refused for the first time in a row."""
        return any(self._now[name].count == 1 for name in refused if name in self._now)

    def why(self, group: str) -> Reason | None:
        """Why nothing is decided in a group; None if its plans pass."""
        refusal = self._now.get(group)
        if refusal is None or refusal.count < self.count_max:
            return None
        names = {"group": group, "faults": refusal.faults, "since": refusal.since.isoformat()}
        return reason(ReasonCode.PLAN_REFUSED, names=names, refusals=refusal.count)
