"""Explains in one sentence why a launched run, or a role of it, has not started. Called by
``loop.py``; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from libs.contracts.messages import RunDelayed
from services.launcher.domain import role_order
from services.launcher.domain.model import ObservedRank, ObservedRun, RankState, Run, RunState

DETAIL_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """The time before the first report of a delay, and the least time between two reports."""

    first: timedelta = timedelta(seconds=5)
    again: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class ReportedDelay:
    """The last report about a run's delay."""

    ranks: int
    detail: str
    at: datetime
    # The run had started.
    running: bool = False


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


def next_delay_event(
    run: Run,
    delay: tuple[int, str] | None,
    reported: ReportedDelay | None,
    now: datetime,
    policy: DelayPolicy,
) -> RunDelayed | datetime | None:
    """The event to publish now, or the time at which one may be due, or None."""
    running = run.state is RunState.RUNNING
    if delay is None:
        return None
    if reported is not None and (reported.ranks, reported.detail, reported.running) == (
        *delay,
        running,
    ):
        return None
    begin = run.assigned_at or now
    due_at = begin + policy.first if reported is None else reported.at + policy.again
    if now < due_at:
        return due_at
    ranks, detail = delay
    return RunDelayed(
        task_id=run.task_id,
        attempt=run.attempt,
        ranks=ranks,
        detail=detail,
        noted_at=now,
        running=running,
    )


def cleared_event(
    before: Run, run: Run, now: datetime, reported: ReportedDelay | None = None
) -> RunDelayed | None:
    """What to publish when the last role of a run that runs has started: nothing delays it. It is
    newer than the last report, whose time is part of its identity."""
    if run.state is not RunState.RUNNING or before.state is not RunState.RUNNING:
        return None
    if not role_order.waiting_roles(before) or role_order.waiting_roles(run):
        return None
    noted_at = max(now, reported.at + timedelta(milliseconds=1)) if reported is not None else now
    return RunDelayed(task_id=run.task_id, attempt=run.attempt, noted_at=noted_at, running=True)
