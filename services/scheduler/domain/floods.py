"""The flood guard: who has more than a day of the whole pool waiting yields while others wait.

An option of the ``timeshare`` discipline. Such an owner holds a bounded part of the pool in the
first walk of ``share.py``; what is free after it is anybody's, in a second one.
"""

from __future__ import annotations

from typing import NamedTuple

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.order import Entry
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.timeshare.rule import RULE, flood_share


class _Flood(NamedTuple):
    """An owner whose backlog is a flood: node equivalents they may hold, and hold."""

    backlog_seconds: float
    most: float
    held: float


def flooded(round_: Round, pool: Pool, entry: Entry) -> Reason | None:
    """Why the task yields; None: its owner floods nobody, or holds less than its part."""
    flood = _flood(round_, pool, entry.task.owner)
    if flood is None or not flood.held or not _passes(flood, pool, entry):
        # One task of everybody's may always run.
        return None
    hours = round(flood.backlog_seconds / 3600.0)
    return reason(ReasonCode.WAITS_FOR_SHARE, hours=hours, limit=round(flood.most, 1))


def turnless(round_: Round, pool: Pool, entry: Entry) -> bool:
    """True if the task may have what is free, but nobody goes for it.

    Else the one task that may always run would be the next of the flood, again and again. What
    went without service for long is granted all the same.
    """
    if round_.marks_of(entry.task).granted:
        return False
    flood = _flood(round_, pool, entry.task.owner)
    return flood is not None and _passes(flood, pool, entry)


def _passes(flood: _Flood, pool: Pool, entry: Entry) -> bool:
    return flood.held + pool.size(entry.task) > flood.most


def _flood(round_: Round, pool: Pool, owner: str) -> _Flood | None:
    if not pool.guarded or len(pool.owners) < 2 or pool.units <= 0:  # noqa: PLR2004 - somebody else
        return None
    backlog = pool.owner_units[owner] * pool.history.mean_seconds / pool.units
    share = flood_share(RULE, backlog)
    if share >= 1.0:
        return None
    held = pool.owner_held.get(owner, 0.0) + sum(
        pool.size(task) for task in round_.started.get(pool.group, ()) if task.owner == owner
    )
    return _Flood(backlog, share * pool.units, held)
