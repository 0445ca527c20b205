"""The ends of single ranks in debug mode: noted in the run's row, and published once each. Pure;
called by ``reconcile.py`` and ``recording.py``.

They decide nothing. A run in debug mode is over when none of its ranks is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from libs.contracts.messages import RankEnded
from services.launcher.domain import exits
from services.launcher.domain.model import ObservedRun, RankState, Run, RunState


def note(run: Run, observed: ObservedRun) -> Run:
    """The run with the ranks that have ended since the last scan. None once it is being ended."""
    if not run.debugs or run.state not in (RunState.ASSIGNED, RunState.RUNNING) or run.is_leaving:
        return run
    known = {each.rank for each in run.ended_ranks}
    new = [
        exits.rank_exit(rank)
        for number, rank in sorted(observed.ranks.items())
        if rank.state is RankState.EXITED and number not in known
    ]
    return replace(run, ended_ranks=(*run.ended_ranks, *new)) if new else run


def events(before: Run, run: Run, now: datetime) -> Iterator[RankEnded]:
    """What to publish about ends that are new in the row."""
    of_rank = {place.rank: place.role for place in run.placements}
    for each in run.ended_ranks[len(before.ended_ranks) :]:
        yield RankEnded(
            task_id=run.task_id,
            attempt=run.attempt,
            exit=each,
            role=of_rank.get(each.rank, ""),
            noted_at=now,
        )
