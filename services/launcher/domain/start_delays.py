"""Explains in one sentence why a launched run, or a role of it, has not started. Called by
``loop.py``; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import RunDelayed
from services.launcher.domain import role_order
from services.launcher.domain.model import (
    ObservedRank,
    ObservedRun,
    RankState,
    ReportedDelay,
    Run,
    RunState,
    ordered_after,
)

DETAIL_CHARACTERS_MAX = 500
NODES_MAX = 16


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """The time before the first report of a delay, and the least time between two reports."""

    first: timedelta = timedelta(seconds=5)
    again: timedelta = timedelta(seconds=5)


def delay_of(run: Run, observed: ObservedRun | None, problem: str) -> tuple[int, str] | None:
    """How many ranks have no process yet and why; None if no delay is known.

    ``problem``: why the last try to launch it failed.
    """
    starting = role_order.waiting_roles(run)
    if run.state is not RunState.ASSIGNED and not starting:
        return None
    ranks = observed.ranks if observed is not None else dict[int, ObservedRank]()
    places = [
        place
        for place in run.placements
        if run.state is RunState.ASSIGNED or place.role in starting
    ]
    found = [(place, ranks.get(place.rank)) for place in places]
    pending = [r for _, r in found if r is not None and r.state is RankState.PENDING]
    absent = sum(rank is None for _, rank in found)
    detail = problem if absent or pending else ""
    if not detail and pending:
        detail = _worst(pending)
    if not detail and absent:
        plan = role_order.start_plan(run, ranks)
        detail = plan.waits if plan is not None else ""
    if not detail:
        return None
    return len(pending) + absent, detail[:DETAIL_CHARACTERS_MAX]


def _worst(pending: list[ObservedRank]) -> str:
    """The most important pending rank: one with a fault before one that is being created."""
    rank = min(pending, key=lambda rank: (not rank.note, rank.fault_since is None, rank.rank))
    return f"rank {rank.rank} on {rank.node_id}: {rank.note or 'not started yet'}"


def nodes_of(observed: ObservedRun | None) -> tuple[str, ...]:
    """The nodes on which ranks cannot start because of a fault that the runtime names."""
    ranks = observed.ranks.values() if observed is not None else ()
    stuck = (r for r in ranks if r.state is RankState.PENDING and r.fault_since is not None)
    return tuple(sorted({rank.node_id for rank in stuck}))[:NODES_MAX]


def next_delay_event(
    run: Run,
    delay: tuple[int, str] | None,
    now: datetime,
    policy: DelayPolicy,
    node_ids: tuple[str, ...] = (),
) -> RunDelayed | datetime | None:
    """The event to publish now, or the time at which one may be due, or None. ``node_ids``: see
    ``nodes_of``."""
    running, reported = run.state is RunState.RUNNING, run.delay
    if delay is None:
        return None
    if reported is None:
        due_at = (run.assigned_at or now) + policy.first
    elif (reported.ranks, reported.detail, reported.running) == (*delay, running):
        return None
    else:
        # A former leader's clock may have been hours ahead.
        due_at = now if reported.at > now else reported.at + policy.again
    return _event(run, *delay, now, node_ids) if now >= due_at else due_at


def cleared_event(before: Run, run: Run, now: datetime) -> RunDelayed | None:
    """What to publish when the last role of a run that runs has started, if a delay was reported:
    nothing delays it."""
    if run.state is not RunState.RUNNING or before.state is not RunState.RUNNING:
        return None
    if not role_order.waiting_roles(before) or role_order.waiting_roles(run):
        return None
    return _event(run, 0, "", now) if run.delay is not None and run.delay.running else None


def reported(run: Run, event: RunDelayed) -> Run:
    """The run with this event as its last report."""
    return replace(
        run, delay=ReportedDelay(event.ranks, event.detail, event.noted_at, event.running)
    )


def _event(
    run: Run, ranks: int, detail: str, now: datetime, node_ids: tuple[str, ...] = ()
) -> RunDelayed:
    """A report that is newer than the last one, by whatever clock that has its time."""
    return RunDelayed(
        task_id=run.task_id,
        attempt=run.attempt,
        ranks=ranks,
        detail=detail,
        noted_at=ordered_after(now, run.delay.at if run.delay is not None else None),
        running=run.state is RunState.RUNNING,
        node_ids=node_ids,
    )
