"""Which ranks of a run may start, what the others wait for, and in which order ranks end. Pure;
called by ``reconcile.py`` and ``start_delays.py``.

Everything here follows from the run's row and the last scan, so that stepping a run again after a
crash yields the remaining stages. A role may start once one of its ranks exists, whatever happened
to the roles that it waited for since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from libs.contracts.messages import Placement, Role, StartCondition, StartsAfter
from libs.contracts.start_order import awaited_ready, is_ordered, ready_probe, stages
from libs.contracts.wording import counted
from services.launcher.domain.model import ObservedRank, RankState, Run, RunState

Ranks = Mapping[int, ObservedRank]


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What of an ordered run may start."""

    # Ranks whose roles may start, those that exist included.
    ranks: frozenset[int]
    # One sentence about the first condition that does not hold; empty: everything may start.
    waits: str = ""
    # Why a condition can never hold any more; empty if it can.
    never: str = ""
    # When the next rank has to be ready at the latest.
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """When a rank has to be ready, and what is wrong if it is not."""

    at: datetime
    text: str


def start_plan(run: Run, ranks: Ranks) -> StartPlan | None:
    """What may start of a run whose roles wait for each other; None for any other run."""
    if run.spec is None or not is_ordered(run.spec.roles):
        return None
    roles = {role.name: role for role in run.spec.roles}
    places: dict[str, list[Placement]] = {}
    for place in run.placements:
        places.setdefault(place.role, []).append(place)
    may = frozenset[int]()
    waits, never, limits = "", "", list[Limit]()
    for name, role in roles.items():
        own = [place.rank for place in places.get(name, ())]
        found = [
            _Condition(run, role, each, places.get(each.role, ()), ranks)
            for each in role.starts_after
            if each.role in roles
        ]
        open_ = [each for each in found if not each.holds]
        if not open_ or any(rank in ranks for rank in own):
            may |= frozenset(own)
            continue
        for each in open_:
            waits = waits or each.text
            never = never or each.never
            limit = each.limit(roles[each.after.role])
            limits += [limit] if limit is not None else []
    return StartPlan(may, waits, never, min(limits, key=attrgetter("at"), default=None))


def why_never(run: Run, ranks: Ranks, now: datetime) -> str:
    """Why a role of an assigned run will never start; empty while it may."""
    plan = start_plan(run, ranks)
    if plan is None or plan.never or plan.limit is None:
        return plan.never if plan is not None else ""
    return plan.limit.text if now >= plan.limit.at else ""


class _Condition:
    """One condition of a role that has not started."""

    def __init__(
        self, run: Run, role: Role, after: StartsAfter, places: Sequence[Placement], ranks: Ranks
    ) -> None:
        self.role, self.after, self._places, self._ranks = role, after, places, ranks
        self._assigned_at = run.assigned_at
        self._wants_ready = after.condition is StartCondition.READY
        self._ready = frozenset(run.ready_ranks) if self._wants_ready else frozenset[int]()
        self._open = [place for place in places if not self._holds_for(place.rank)]

    @property
    def holds(self) -> bool:
        return not self._open

    @property
    def text(self) -> str:
        """What is waited for."""
        count = len(self._places) - len(self._open)
        what = "is ready" if self._wants_ready else "runs"
        of = f"{count} of {counted(len(self._places), 'rank')} so far"
        return f"role {self.role.name} waits until role {self.after.role} {what} ({of})"

    @property
    def never(self) -> str:
        """Why this can never hold; empty if it can."""
        for place in self._open:
            rank = self._ranks.get(place.rank)
            if rank is not None and rank.state is RankState.EXITED:
                how = f"code {rank.code}" if rank.code is not None else f"signal {rank.signal}"
                what = "before it was ready" if self._wants_ready else "before that"
                return (
                    f"role {self.role.name} can never start: rank {place.rank} of role"
                    f" {self.after.role} ended with {how} {what}"
                )
        return ""

    def limit(self, other: Role) -> Limit | None:
        """The first time at which a rank that runs has to be ready."""
        if not self._wants_ready:
            return None
        seconds = ready_probe(other).within_seconds
        begun = [
            (rank.started_at, place.rank)
            for place in self._open
            if (rank := self._ranks.get(place.rank)) is not None
            and rank.state is RankState.RUNNING
            and rank.started_at is not None
        ]
        if not begun:
            return None
        started_at, number = min(begun)
        if self._assigned_at is not None:
            # The clock of a node may be behind by hours.
            started_at = max(started_at, self._assigned_at)
        return Limit(
            started_at + timedelta(seconds=seconds),
            f"rank {number} of role {other.name} was not ready within {seconds:g} s, and role"
            f" {self.role.name} waits for that; {_fix(other)}",
        )

    def _holds_for(self, number: int) -> bool:
        rank = self._ranks.get(number)
        if rank is None or rank.state not in (RankState.RUNNING, RankState.EXITED):
            return False
        ok = rank.state is RankState.RUNNING or rank.code == 0
        return ok and (not self._wants_ready or number in self._ready)


def _fix(role: Role) -> str:
    if role.ready is not None and role.ready.port:
        at = f"port {role.ready.port}"
        return f"nothing answered at its {at + role.ready.path if role.ready.path else at}"
    return "its program did not call shiftwork.ready()"


def newly_ready(run: Run, ranks: Ranks, probed: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Ranks that were found ready by a runtime or the launcher. ``probed``: rank and start of
    processes that answered a probe of the launcher."""
    if run.state is not RunState.ASSIGNED:
        return ()
    answered = frozenset(probed)
    return tuple(
        number
        for number, rank in ranks.items()
        if rank.state is RankState.RUNNING and (rank.ready or (number, rank.start) in answered)
    )


def with_ready(run: Run, ranks: Iterable[int]) -> Run:
    """The run with these ranks as ready, as far as other roles wait for that. They are noted until
    it has started."""
    awaited = awaited_ready(run.spec.roles) if run.spec is not None else frozenset[str]()
    if not awaited or run.state is not RunState.ASSIGNED:
        return run
    found = frozenset(ranks).difference(run.ready_ranks)
    new = [place.rank for place in run.placements if place.rank in found and place.role in awaited]
    return replace(run, ready_ranks=tuple(sorted((*run.ready_ranks, *new)))) if new else run


def end_stages(run: Run) -> tuple[frozenset[int], ...]:
    """The ranks of an ordered run in the order in which they end: the roles in the reverse order of
    their start, and rank 0, which acknowledges for the gang, in the last stage. One stage for any
    other run."""
    everyone = frozenset(place.rank for place in run.placements)
    if run.spec is None or not is_ordered(run.spec.roles) or not everyone:
        return (everyone,)
    first = min(everyone)
    number = {name: place for place, names in enumerate(stages(run.spec.roles)) for name in names}
    found: dict[int, set[int]] = {}
    for place in run.placements:
        if place.rank != first:
            found.setdefault(number.get(place.role, 0), set()).add(place.rank)
    ordered = [found[stage] for stage in sorted(found, reverse=True)]
    role = next(place.role for place in run.placements if place.rank == first)
    if ordered and number.get(role, 0) == min(found):
        ordered[-1].add(first)
    else:
        ordered.append({first})
    return tuple(map(frozenset, ordered))


@dataclass(frozen=True, slots=True)
class EndStage:
    """The ranks that have to end now, those of earlier stages included."""

    ranks: tuple[int, ...]
    # For each of these stages.
    grace_seconds: float
    # When the next stage begins in any case.
    due_at: datetime


def end_stage(run: Run, ranks: Ranks, now: datetime, grace_seconds: float) -> EndStage | None:
    """The stage in which a run is that has been ending since ``ending_at``; None: everything has to
    end. Each stage takes at most the same share of the grace period."""
    assert run.ending_at is not None, "the run is ending"
    ordered = end_stages(run) if grace_seconds > 0 else ()
    ended = set[int]()
    for place, stage in enumerate(ordered[:-1]):
        ended |= stage
        share_s = grace_seconds / len(ordered)
        due_at = run.ending_at + timedelta(seconds=share_s * (place + 1))
        left = any(rank in ranks and not ranks[rank].over for rank in stage)
        if left and now < due_at:
            return EndStage(tuple(sorted(ended)), share_s, due_at)
    return None
