"""What turns and grants cost while a forecast plays on: the pool's accounts, copied. Pure.

``course.py`` pays from it as ``passes.py`` and ``grants.py`` pay from the rows.
"""

from __future__ import annotations

from math import inf

from services.scheduler.domain.accounts import counted, turn_budget
from services.scheduler.domain.explanation.standing import Standing
from services.scheduler.domain.model import Task
from services.scheduler.domain.order import Entry
from services.scheduler.domain.timeshare.rule import grant_budget, grant_cost, is_big, spent


class Purse:
    """The accounts of one pool from now on."""

    def __init__(self, standing: Standing) -> None:
        self._round, self._pool = standing.round, standing.pool
        self._budget = turn_budget(self._pool)
        book = self._round.book(self._pool)
        self._account = counted(self._budget, book.tokens, book.tokens_at, self._round)

    def pay(self, entry: Entry, cost: float, at: float, *, first: bool) -> float | None:
        """Pay for a turn. None: it is paid; else when it can be, ``inf`` for never.

        ``first``: the task was granted the first place.
        """
        budget, pool = self._budget, self._pool
        if not pool.discipline.pays:
            return None
        self._account = budget.accrued(self._account, at)
        big = is_big(pool.tempo.rule, pool.size(entry.task) / max(pool.units, 1e-9))
        may = first or big or entry.task.marks.granted
        if not budget.covers(self._account, cost, entitled=may):
            covered = budget.covered_at(self._account, cost, entitled=may)
            return inf if covered is None else covered
        self._account = spent(self._account, cost)
        return None

    def granted_from(self, task: Task) -> float | None:
        """From when a waiting task may be granted the first place; None: never."""
        pool, round_ = self._pool, self._round
        if not pool.discipline.pays or round_.marks_of(task).granted:
            return None
        rule, numbers, book = pool.tempo.rule, pool.tempo.numbers, round_.book(pool)
        since = (task.unserved_since or task.submitted_at).timestamp()
        budget = grant_budget(rule, numbers, pool.units)
        account = counted(budget, book.grants, book.grants_at, round_)
        cost = grant_cost(rule, pool.size(task), pool.move_seconds(task))
        covered = budget.covered_at(account, min(budget.ceiling, cost))
        if covered is None:
            return None
        return max(since + numbers.grant_after_seconds, covered, round_.seconds)
