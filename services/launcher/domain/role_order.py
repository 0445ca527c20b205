"""Which ranks of a run may start, what the others wait for, and in which order ranks end. Pure;
called by ``reconcile.py``, ``start_delays.py`` and the handlers.

A run starts with the roles that wait for nothing; the others start while it runs. How far each role
has come is noted in the run's row before anything is ordered, with the times at which the launcher
found it out: clocks of nodes decide nothing. Stepping a run again after a crash yields the rest.
Times that limit a role begin again with each leader, once it has observed the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import Placement, Role, StartCondition, StartsAfter
from libs.contracts.start_order import awaited_ready, first_roles, is_ordered, ready_probe, stages
from libs.contracts.wording import counted
from services.launcher.domain import rank_restarts
from services.launcher.domain.model import ObservedRank, RankState, RoleStart, Run, RunState

Ranks = Mapping[int, ObservedRank]


# What the row knows


def waiting_roles(run: Run) -> frozenset[str]:
    """The roles of a live run of which some rank has not existed yet, as far as that is noted; none
    of a run that starts as a whole."""
    live = run.state in (RunState.ASSIGNED, RunState.RUNNING)
    return _not_begun(run) if live else frozenset()


def _not_begun(run: Run) -> frozenset[str]:
    if run.spec is None or not is_ordered(run.spec.roles):
        return frozenset()
    if run.started_at is not None and not run.role_starts:
        # An earlier version started it, when each of its ranks existed.
        return frozenset()
    existing = {each.role for each in run.role_starts if each.exists_since is not None}
    return frozenset(role.name for role in run.spec.roles if role.name not in existing)


def begun_ranks(run: Run) -> frozenset[int]:
    """The ranks of a run that has started, without those of roles that had to wait and are not
    complete."""
    if run.started_at is None:
        return frozenset()
    waiting = _not_begun(run)
    return frozenset(place.rank for place in run.placements if place.role not in waiting)


def first_ranks(run: Run) -> frozenset[int]:
    """The ranks that wait for nothing: when they exist, the run has started."""
    roles = first_roles(run.spec.roles) if run.spec is not None else frozenset[str]()
    named = {role.name for role in run.spec.roles} if run.spec is not None else set[str]()
    return frozenset(
        place.rank for place in run.placements if place.role in roles or place.role not in named
    )


def leader_waits(run: Run, ranks: Ranks) -> bool:
    """Whether rank 0, which saves and acknowledges for the gang, has not existed yet."""
    waiting = waiting_roles(run)
    if not waiting or not run.placements:
        return False
    first = run.leading_rank
    role = next(place.role for place in run.placements if place.rank == first)
    restarted = any(each.rank == first for each in run.restarts)
    return role in waiting and not restarted and not exists(ranks.get(first))


def awaited(run: Run) -> frozenset[str]:
    """The roles for whose readiness others still wait."""
    return frozenset() if run.is_leaving else awaited_ready(_kept_waiting(run))


def _kept_waiting(run: Run) -> list[Role]:
    """The roles for which a condition is missing, as far as that is noted."""
    waiting = waiting_roles(run)
    if not waiting or run.spec is None:
        return []
    may = {each.role for each in run.role_starts if each.may_since is not None}
    return [role for role in run.spec.roles if role.name in waiting and role.name not in may]


def why_not_started(run: Run, role_name: str) -> str:
    """Why no rank of a role of a running run was started, as a clause with all that the role waits
    for; empty if ranks of it may exist. ``start_plan`` tells what of it is missing by a scan."""
    if role_name not in waiting_roles(run) or run.spec is None:
        return ""
    if any(each.role == role_name and each.may_since is not None for each in run.role_starts):
        return ""
    if run.is_leaving:
        return f"role {role_name} does not start any more: the task leaves"
    role = next(role for role in run.spec.roles if role.name == role_name)
    return f"role {role_name} waits until {' and '.join(map(_condition_text, role.starts_after))}"


def _condition_text(after: StartsAfter) -> str:
    what = "is ready" if after.condition is StartCondition.READY else "runs"
    return f"role {after.role} {what}"


# What a scan adds


def note(run: Run, ranks: Ranks, now: datetime) -> Run:
    """The run with what a scan shows of the start of its roles. Once it was requested to leave,
    nothing more may start."""
    if not waiting_roles(run) or run.spec is None:
        return run
    known = {each.role: each for each in run.role_starts}
    places, first = _places(run), first_roles(run.spec.roles)
    found: list[RoleStart] = []
    for role in run.spec.roles:
        start, own = known.get(role.name) or RoleStart(role.name), places.get(role.name, ())
        if start.exists_since is None and all(exists(ranks.get(each.rank)) for each in own):
            start = replace(start, exists_since=now)
        if start.may_since is None and role.name not in first and _may(run, role, places, ranks):
            start = replace(start, may_since=now)
        found.append(start)
    run = replace(run, role_starts=tuple(found))
    warming = awaited(run)
    return replace(
        run,
        role_starts=tuple(
            replace(each, warms_since=_warms_since(run, each, places, ranks, now))
            if each.role in warming
            else each
            for each in found
        ),
    )


def renew(run: Run, now: datetime) -> Run:
    """The run with the times of its roles that are not over begun again. A new leader calls this: a
    former one may have had another clock, and nobody observed the run in between."""
    if not waiting_roles(run):
        return run
    return replace(
        run,
        role_starts=tuple(
            replace(
                each,
                may_since=each.may_since and now,
                warms_since=each.warms_since and now,
            )
            for each in run.role_starts
        ),
    )


def exists(rank: ObservedRank | None) -> bool:
    """Whether a process of the rank exists or existed. A pending rank has none yet; one that was
    lost before it began never had one."""
    return rank is not None and rank.state is not RankState.PENDING and not lost_at_its_start(rank)


def lost_at_its_start(rank: ObservedRank) -> bool:
    """Whether the rank was lost before its process began."""
    return rank.state is RankState.LOST and rank.started_at is None


def _may(run: Run, role: Role, places: Mapping[str, Sequence[Placement]], ranks: Ranks) -> bool:
    """Whether the role may start. One of which a rank exists was begun by a process before."""
    if any(place.rank in ranks for place in places.get(role.name, ())):
        return True
    conditions = _conditions(run, role, places, ranks)
    return not run.is_leaving and all(each.holds for each in conditions)


def _warms_since(
    run: Run,
    start: RoleStart,
    places: Mapping[str, Sequence[Placement]],
    ranks: Ranks,
    now: datetime,
) -> datetime | None:
    """Since when all ranks of an awaited role run that are not ready. A restart of one of them
    begins this time again; a node that is silent does not."""
    if start.exists_since is None:
        return None
    restarting = {each.rank for each in rank_restarts.missing(run, ranks)}
    cold = {place.rank for place in places.get(start.role, ())}.difference(run.ready_ranks)
    return None if cold & restarting else start.warms_since or now


def newly_ready(run: Run, ranks: Ranks, probed: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Ranks that were found ready by a runtime or the launcher. ``probed``: rank and start of
    processes that answered a probe of the launcher."""
    if not awaited(run):
        return ()
    answered = frozenset(probed)
    return tuple(
        number
        for number, rank in ranks.items()
        if rank.state is RankState.RUNNING and (rank.ready or (number, rank.start) in answered)
    )


def with_ready(run: Run, ranks: Iterable[int]) -> Run:
    """The run with these ranks as ready, as far as other roles wait for that."""
    roles = awaited(run)
    found = frozenset(ranks).difference(run.ready_ranks) if roles else frozenset[int]()
    if not found:
        return run
    new = [place.rank for place in run.placements if place.rank in found and place.role in roles]
    return replace(run, ready_ranks=tuple(sorted((*run.ready_ranks, *new)))) if new else run


# What follows


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What of an ordered run may start."""

    # Ranks whose roles may start, those that exist included.
    ranks: frozenset[int]
    # One sentence about the first condition that does not hold; empty: everything may start.
    waits: str = ""
    # Why a condition can never hold any more; empty if it can.
    never: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """When something has to be there at the latest, and what is wrong if it is not."""

    at: datetime
    text: str
    # The ranks that do not exist; empty: one of those that run is not ready.
    absent: tuple[int, ...] = ()


def start_plan(run: Run, ranks: Ranks) -> StartPlan | None:
    """What may start of a run of which some role waits, after ``note``; None for any other run."""
    if not waiting_roles(run) or run.spec is None:
        return None
    may_since = {each.role: each.may_since for each in run.role_starts}
    places, first = _places(run), first_roles(run.spec.roles)
    may = frozenset[int]()
    waits, never = "", ""
    for role in run.spec.roles:
        if role.name in first or may_since.get(role.name) is not None:
            may |= {place.rank for place in places.get(role.name, ())}
            continue
        for each in _conditions(run, role, places, ranks):
            if not each.holds:
                waits = waits or each.text
                never = never or each.never
    return StartPlan(may, waits, never)


def limits(run: Run, ranks: Ranks) -> list[Limit]:
    """Until when roles have to be ready, or have to exist once they may start."""
    waiting = waiting_roles(run)
    if not waiting or run.spec is None:
        return []
    roles, places, warming = (
        {each.name: each for each in run.spec.roles},
        _places(run),
        awaited(run),
    )
    found: list[Limit] = []
    for start in run.role_starts:
        own = places.get(start.role, ())
        if start.role in warming and start.warms_since is not None:
            # None is left where its ranks are ready, but what waits for them waits for more.
            cold = [place for place in own if place.rank not in run.ready_ranks]
            if cold:
                found.append(_ready_limit(run, roles[start.role], start.warms_since, cold[0]))
        if start.role in waiting and start.may_since is not None:
            absent = [place for place in own if not exists(ranks.get(place.rank))]
            if absent:
                text = _absent_text(run, absent, ranks)
                at = start.may_since + run.start_limit
                found.append(Limit(at, text, tuple(place.rank for place in absent)))
    return found


def _ready_limit(run: Run, role: Role, since: datetime, cold: Placement) -> Limit:
    seconds = ready_probe(role).within_seconds
    waiter = next(each.name for each in _kept_waiting(run) if role.name in awaited_ready([each]))
    return Limit(
        since + timedelta(seconds=seconds),
        f"rank {cold.rank} of role {role.name} was not ready within {seconds:g} s, and role"
        f" {waiter} waits for that; {_fix(role)}",
    )


def _absent_text(run: Run, absent: Sequence[Placement], ranks: Ranks) -> str:
    first = absent[0]
    rank = ranks.get(first.rank)
    why = f": {rank.note}" if rank is not None and rank.note else ""
    return (
        f"rank {first.rank} of role {first.role} did not start on {first.node_id} within"
        f" {run.start_limit.total_seconds():.0f} s after all that its role waits for{why}"
    )


def _places(run: Run) -> Mapping[str, Sequence[Placement]]:
    places: dict[str, list[Placement]] = {}
    for place in run.placements:
        places.setdefault(place.role, []).append(place)
    return places


def _conditions(
    run: Run, role: Role, places: Mapping[str, Sequence[Placement]], ranks: Ranks
) -> list[_Condition]:
    return [
        _Condition(run, role, each, places[each.role], ranks)
        for each in role.starts_after
        if each.role in places
    ]


class _Condition:
    """One condition of a role that has not started."""

    def __init__(
        self, run: Run, role: Role, after: StartsAfter, places: Sequence[Placement], ranks: Ranks
    ) -> None:
        self.role, self.after, self._places, self._ranks = role, after, places, ranks
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
        of = f"{count} of {counted(len(self._places), 'rank')} so far"
        return f"role {self.role.name} waits until {_condition_text(self.after)} ({of})"

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


# The end


def end_stages(run: Run) -> tuple[frozenset[int], ...]:
    """The ranks of an ordered run in the order in which they end: the roles in the reverse order of
    their start, and rank 0, which acknowledges for the gang, in the last stage. One stage for any
    other run."""
    everyone = frozenset(place.rank for place in run.placements)
    if run.spec is None or not is_ordered(run.spec.roles) or not everyone:
        return (everyone,)
    first = run.leading_rank
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
