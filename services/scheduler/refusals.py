"""Which node groups' plans the check before the commit refuses, for how long, and why.

``loop.py`` notes every round here; ``commands.py`` asks for what ``explain`` says. It is the
leader's memory: a new leader counts from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from prometheus_client import Counter

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.proof.violations import Violation
from services.scheduler.domain.why import reason

HELD_UP = Counter(
    "shiftwork_scheduler_group_held_up_rounds_total",
    "Rounds in which a group's decisions were refused, from the limit of refusals in a row on",
    ["group"],
)
FAULTS_NAMED_MAX = 3


@dataclass
class Refusal:
    """A group whose plans are refused one after the other."""

    since: datetime
    faults: str
    count: int = 0


@dataclass
class Refusals:
    """The groups that are refused now. ``count_max`` refusals in a row are an alarm."""

    count_max: int
    _now: dict[str, Refusal] = field(default_factory=dict[str, Refusal])

    def clear(self) -> None:
        """A new term begins."""
        self._now.clear()

    def note(self, refused: Mapping[str, Sequence[Violation]], at: datetime) -> dict[str, Refusal]:
        """A round refused these groups; returns those for which the rows are to be loaded again.

        That is at the limit, and then after twice as many each time: loading costs, and helps
        only where memory differs from the rows.
        """
        found: dict[str, Refusal] = {}
        for group, violations in refused.items():
            faults = sorted({each.fault.name for each in violations})
            refusal = self._now.setdefault(group, Refusal(at, ""))
            refusal.faults = ", ".join(faults[:FAULTS_NAMED_MAX])
            refusal.count += 1
            if refusal.count >= self.count_max:
                HELD_UP.labels(group).inc()
            turns, rest = divmod(refusal.count, self.count_max)
            if not rest and turns.bit_count() == 1:
                found[group] = refusal
        return found

    def passed(self, groups: Collection[str]) -> dict[str, Refusal]:
        """These groups' plans were right; returns those that were held up until now."""
        over = {group: self._now.pop(group) for group in groups if group in self._now}
        return {group: each for group, each in over.items() if each.count >= self.count_max}

    def first(self, refused: Collection[str]) -> bool:
        """True if one of these groups is refused for the first time in a row."""
        return any(self._now[group].count == 1 for group in refused if group in self._now)

    def why(self, group: str) -> Reason | None:
        """What holds up the tasks that wait in a group; None if its plans pass."""
        refusal = self._now.get(group)
        if refusal is None or refusal.count < self.count_max:
            return None
        names = {"group": group, "faults": refusal.faults, "since": refusal.since.isoformat()}
        return reason(ReasonCode.PLAN_REFUSED, names=names, refusals=refusal.count)
