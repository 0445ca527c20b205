"""The pool's accounts of node-seconds: counted up to now, from the row that was last written."""

from __future__ import annotations

from datetime import datetime

from services.scheduler.domain.disciplines.timeshare.rule import (
    Account,
    Budget,
    is_big,
    preemption_budget,
)
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.round import Round


def account_now(budget: Budget, tokens: float, at: datetime | None, round_: Round) -> Account:
    """What an account holds now; one that was never used is full."""
    if at is None:
        return budget.opened(round_.seconds)
    return budget.accrued(Account(tokens, at.timestamp()), round_.seconds)


def slice_budget(pool: Pool) -> Budget:
    """What slice rounds of the pool may cost."""
    rule, numbers = pool.tempo.rule, pool.tempo.numbers
    return preemption_budget(rule, numbers, pool.units, numbers.restart_seconds)


def may_use_reserve(round_: Round, pool: Pool, task: Task) -> bool:
    """True if a task may use the part of the budget that is reserved."""
    big = is_big(pool.tempo.rule, pool.size(task) / max(pool.units, 1e-9))
    return big or round_.order_key_of(task).granted
