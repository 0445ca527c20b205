"""Grants: the task longest without service is next, as far as the pool's account of grants goes.

Called by ``passes.py`` before each pass, so that nothing starves in an order that prefers short
and small tasks. A smaller task never jumps ahead of one that cannot be paid yet.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.accounts import counted
from services.scheduler.domain.model import Mark, Task
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.timeshare.rule import grant_budget, grant_cost, spent
from services.scheduler.domain.why import reason

# Before every other task, and before each other in the order of the grants.
GRANTED_KEY = -1e15


def grant(round_: Round, pool: Pool) -> tuple[Task | None, datetime | None]:
    """Grant one task, if one is due and can be paid; and when to ask again, as far as known."""
    found = _longest_unserved(round_, pool)
    if found is None:
        return None, None
    since, task = found
    rule, numbers = pool.tempo.rule, pool.tempo.numbers
    due = since + numbers.grant_after_seconds
    if due > round_.seconds:
        return None, datetime.fromtimestamp(due, UTC)
    budget = grant_budget(rule, numbers, pool.units)
    book = round_.book(pool)
    account = counted(budget, book.grants, book.grants_at, round_)
    cost = min(budget.ceiling, grant_cost(rule, pool.size(task), pool.move_seconds(task)))
    if not budget.covers(account, cost):
        at = budget.covered_at(account, cost)
        return None, None if at is None else round_.after(max(1.0, at - round_.seconds))
    left = spent(account, cost)
    round_.books[pool.group] = replace(book, grants=left.tokens, grants_at=round_.now)
    marks = replace(
        round_.marks_of(task), key=GRANTED_KEY + round_.seconds, scaled=0.0, granted=True
    )
    why = reason(ReasonCode.GRANTED, seconds=round(round_.seconds - since))
    round_.remark(Mark(task.id, why, marks))
    # There may be more of them: one in each pass.
    return task, round_.after(pool.policy.timeshare.pass_seconds)


def _longest_unserved(round_: Round, pool: Pool) -> tuple[float, Task] | None:
    for since, task_id in pool.unserved:
        task = round_.index.tasks[task_id]
        # One that got a place or a promise in this round is served.
        if task.promised or task_id in round_.served or task_id in round_.moved:
            continue
        if not round_.marks_of(task).granted and round_.totals.fits_now(task.shape):
            return since, task
    return None
