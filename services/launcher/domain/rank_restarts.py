"""Restarts of ranks in their places, while the others of the gang go on. Pure; called by
``reconcile.py``.

The run's row has the number of each rank's process: 0 for the first one. A restart is noted there
before anything is ordered, so that after a crash the same process is ordered again, and an earlier
process that a late listing still has is not taken for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from libs.contracts.messages import FaultClass, RankRestarted, RestartScope, Role
from libs.contracts.restart_rules import rule_of, wants_restart
from services.launcher.domain import exits
from services.launcher.domain.model import (
    ObservedRank,
    ObservedRun,
    RankRestart,
    RankState,
    Run,
    RunState,
)

# How often, where the rule does not say it.
RESTARTS_MAX = 3
# The pause before each restart of a rank: doubled from the first to the most.
PAUSE_FIRST_SECONDS, PAUSE_MOST_SECONDS = 1.0, 60.0


def restarts_in_place(role: Role) -> bool:
    """Whether a rank of this role is started again in its place."""
    return rule_of(role).scope is RestartScope.RANK


def restarts_max(role: Role) -> int:
    """How often that may happen to each of its ranks."""
    given = rule_of(role).max_restarts
    return RESTARTS_MAX if given is None else given


def counts(run: Run) -> Mapping[int, int]:
    """How often each rank was restarted, for those that were."""
    return {each.rank: each.count for each in run.restarts}


def current(run: Run, listed: ObservedRun) -> ObservedRun:
    """The run without ends after which a rank is started again."""
    wanted = counts(run)
    if not wanted:
        return listed
    ranks = {
        number: rank for number, rank in listed.ranks.items() if rank.start >= wanted.get(number, 0)
    }
    return replace(listed, ranks=ranks)


def note(run: Run, listed: ObservedRun, now: datetime) -> Run:
    """The run with a restart for each rank whose end its rule restarts. None once the run is ending
    or leaves, on request or on its own."""
    if run.spec is None or run.state not in (RunState.ASSIGNED, RunState.RUNNING) or run.is_leaving:
        return run
    roles = {role.name: role for role in run.spec.roles if restarts_in_place(role)}
    if not roles:
        return run
    known = {each.rank: each for each in run.restarts}
    again = {
        place.rank: RankRestart(
            place.rank, count + 1, now + timedelta(seconds=pause_seconds(count)), _how(rank)
        )
        for place in run.placements
        if place.role in roles
        and (rank := listed.ranks.get(place.rank)) is not None
        and rank.start == (count := known[place.rank].count if place.rank in known else 0)
        and count < restarts_max(roles[place.role])
        and _is_restarted(roles[place.role], rank)
    }
    if not again:
        return run
    found = {**known, **again}
    return replace(
        run,
        restarts=tuple(found[rank] for rank in sorted(found)),
        ready_ranks=tuple(rank for rank in run.ready_ranks if rank not in again),
    )


def pause_seconds(count: int) -> float:
    """The pause before the next restart of a rank that was restarted ``count`` times."""
    return min(PAUSE_MOST_SECONDS, PAUSE_FIRST_SECONDS * 2.0 ** min(count, 16))


def waiting(run: Run, observed: ObservedRun) -> Iterator[RankRestart]:
    """The restarts that are noted and not observed yet."""
    return (each for each in run.restarts if each.rank not in observed.ranks)


def missing(run: Run, ranks: Mapping[int, ObservedRank]) -> list[RankRestart]:
    """The restarts that are noted and whose process does not exist yet."""
    found = ((each, ranks.get(each.rank)) for each in run.restarts)
    return [each for each, rank in found if rank is None or rank.state is RankState.PENDING]


def renew(run: Run, observed: ObservedRun, now: datetime) -> Run:
    """The run with the times of its restarts that are not over begun again: a pause that is left
    stays, up to its length. A new leader calls this, as ``role_order.renew``."""
    if run.state not in (RunState.ASSIGNED, RunState.RUNNING):
        return run
    missed = missing(run, observed.ranks)
    if not missed:
        return run

    def renewed(each: RankRestart) -> RankRestart:
        pause = timedelta(seconds=pause_seconds(each.count - 1))
        return replace(each, not_before=min(max(each.not_before, now), now + pause))

    return replace(
        run, restarts=tuple(renewed(each) if each in missed else each for each in run.restarts)
    )


def overdue(run: Run, observed: ObservedRun, now: datetime) -> Iterator[RankRestart]:
    """The restarts whose process does not run although their time is over."""
    missed = missing(run, observed.ranks)
    return (each for each in missed if now >= each.not_before + run.start_limit)


def due(run: Run, observed: ObservedRun, now: datetime) -> list[datetime]:
    """When the run is to be evaluated again for its restarts: at the end of a pause, and of the
    time to start."""
    missed = missing(run, observed.ranks)
    times = [at for each in missed for at in (each.not_before, each.not_before + run.start_limit)]
    return [at for at in times if at > now]


def only_waits(run: Run, observed: ObservedRun, starting: Container[str]) -> bool:
    """Whether nothing of the run runs, because what is not over waits for its restart, or is of a
    role that has not started (``starting``)."""
    waits = {each.rank for each in missing(run, observed.ranks)}
    for place in run.placements:
        rank = observed.ranks.get(place.rank)
        if place.role in starting and (rank is None or rank.state is RankState.PENDING):
            waits.add(place.rank)
    return bool(waits) and all(
        place.rank in waits or (place.rank in observed.ranks and observed.ranks[place.rank].over)
        for place in run.placements
    )


def events(before: Run, run: Run, now: datetime) -> Iterator[RankRestarted]:
    """What to publish about restarts that are new in the row."""
    if run.spec is None or run.state not in (RunState.ASSIGNED, RunState.RUNNING):
        return
    known = counts(before)
    roles = {role.name: role for role in run.spec.roles}
    of_rank = {place.rank: place for place in run.placements}
    for each in run.restarts:
        if each.count > known.get(each.rank, 0):
            place = of_rank.get(each.rank)
            role = place.role if place else ""
            yield RankRestarted(
                task_id=run.task_id,
                attempt=run.attempt,
                rank=each.rank,
                role=role,
                restarts=each.count,
                restarts_max=restarts_max(roles[role]) if role in roles else each.count,
                detail=each.detail,
                noted_at=now,
                node_id=place.node_id if place else "",
            )


def _is_restarted(role: Role, rank: ObservedRank) -> bool:
    """Whether this end is followed by a restart. What the platform or a node did to a rank is
    listed as lost and ends the attempt: the node may be gone."""
    return rank.state is RankState.EXITED and wants_restart(
        rule_of(role), rank.code, rank.signal, FaultClass.UNKNOWN
    )


def _how(rank: ObservedRank) -> str:
    return exits.failure_text(rank)
