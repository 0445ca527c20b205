"""The flood guard: who has more than a day of the whole pool waiting yields while others wait.

An option of the ``timeshare`` discipline. Such an owner holds a bounded part of the pool in the
first walk of ``share.py``; what is free after it is anybody's, in a second one.
"""

from __future__ import annotations

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.order import Entry
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.timeshare.rule import RULE, flood_share
from services.scheduler.domain.why import reason


def flooded(round_: Round, pool: Pool, entry: Entry) -> Reason | None:
    """Why the task yields; None: its owner floods nobody, or holds less than its part."""
    owner = entry.task.owner
    if not pool.guarded or len(pool.owners) < 2 or pool.units <= 0:  # noqa: PLR2004 - somebody else
        return None
    backlog = pool.owner_units[owner] * pool.history.mean_seconds / pool.units
    share = flood_share(RULE, backlog)
    if share >= 1.0:
        return None
    held = pool.owner_held.get(owner, 0.0) + sum(
        pool.size(task) for task in round_.started.get(pool.group, ()) if task.owner == owner
    )
    most = share * pool.units
    if not held or held + pool.size(entry.task) <= most:
        # One task of everybody's may always run.
        return None
    hours = round(backlog / 3600.0)
    return reason(ReasonCode.WAITS_FOR_SHARE, hours=hours, limit=round(most, 1))
