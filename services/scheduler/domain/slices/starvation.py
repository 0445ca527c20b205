"""Starvation grants: the task longest without service is next, as far as the account allows.

Called by ``allocate.py`` before each slice round, so that nothing starves in an order that prefers
short and small tasks. A smaller task never jumps ahead of one that cannot be paid yet.

Only a task that a grant can help gets one. A grant makes a task the first of its level; it lifts no
quota and takes nothing from higher levels, so a task that waits for those would use the account up
and hold back every task behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.blockers import flood_reason, is_blocked, retry_later
from services.scheduler.domain.disciplines.timeshare.rule import grant_budget, grant_cost, spent
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED, Depth
from services.scheduler.domain.model.decisions import Reorder
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, reason
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.preemption.victims import outranks
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.queue.queues import QueueName
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices.budgets import account_now

# Before every other task, and before each other in the order of the grants.
GRANTED_KEY = -1e15


def grant(
    round_: Round, pool: Pool, entry_of: Callable[[Task], Entry]
) -> tuple[Task | None, datetime | None]:
    """Grant one task, if one is due and can be paid; and when to ask again, as far as known.

    ``entry_of`` gives a task's level and guarantee at this moment.
    """
    rule, numbers = pool.tempo.rule, pool.tempo.numbers
    found = _longest_unserved(round_, pool, entry_of, numbers.grant_after_seconds)
    if found is None:
        return None, None
    since, task = found
    due = since + numbers.grant_after_seconds
    if due > round_.seconds:
        return None, datetime.fromtimestamp(due, UTC)
    budget = grant_budget(rule, numbers, pool.units)
    ledger = round_.ledger_of(pool)
    account = account_now(budget, ledger.grants, ledger.grants_at, round_)
    cost = min(budget.ceiling, grant_cost(rule, pool.size(task), pool.move_seconds(task)))
    if not budget.covers(account, cost):
        at = budget.covered_at(account, cost)
        return None, None if at is None else round_.after(max(1.0, at - round_.seconds))
    left = spent(account, cost)
    round_.ledgers[pool.group] = replace(ledger, grants=left.tokens, grants_at=round_.now)
    order_key = replace(
        round_.order_key_of(task), key=GRANTED_KEY + round_.seconds, scaled=0.0, granted=True
    )
    why = reason(ReasonCode.GRANTED, seconds=round(round_.seconds - since))
    round_.reorder(Reorder(task.id, why, order_key))
    # There may be more of them: one in each slice round.
    return task, round_.after(pool.policy.timeshare.pass_seconds)


def _longest_unserved(
    round_: Round, pool: Pool, entry_of: Callable[[Task], Entry], after_seconds: float
) -> tuple[float, Task] | None:
    """The longest unserved task that a grant can help; the search ends with one not due yet."""
    stopped: set[QueueName] = set()
    open_to = _Open(round_, pool)
    for (since, task_id), name in pool.unserved.walk(stopped):
        task = round_.index.tasks[task_id]
        # One that got a place or a promise in this round is served.
        if task.promised or task_id in round_.served or task_id in round_.moved:
            continue
        if round_.order_key_of(task).granted or retry_later(task, round_.now):
            continue
        if since + after_seconds > round_.seconds or open_to(entry_of(task)):
            return since, task
        stopped.add(name)
    return None


class _Open:
    """Whether a grant could lead to a start, as things stand; the same for all of a queue."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        # What is left to a level and a guarantee once no other task of its level is there.
        self._left: dict[tuple[int, str, Depth, Depth], Capacity] = {}

    def __call__(self, entry: Entry) -> bool:
        round_, pool = self._round, self._pool
        if is_blocked(round_, pool, entry) or flood_reason(round_, pool, entry) is not None:
            return False
        left = self._left_to(entry)
        return left is None or left.pick(entry.shape) is not None

    def _left_to(self, entry: Entry) -> Capacity | None:
        """All nodes without what the task can never take from others; None: it may take all.

        Runs that are only held for a while count as nodes that it can take: that passes, and a
        smaller task must not jump ahead meanwhile.
        """
        round_, pool = self._round, self._pool
        claim = UNCOVERED
        if pool.clusters:
            claim = pool.coverage.claim(entry.cluster, pool.size(entry.task), entry.weight)
        elif max((*pool.running, *self._promised()), default=entry.weight) <= entry.weight:
            return None
        key = entry.weight, entry.cluster, entry.depth, claim
        if key not in self._left:
            left = self._left[key] = round_.totals.offered.copy()
            tasks = round_.index.tasks
            runs = [tasks[task_id] for row in pool.running.values() for _, task_id in row]
            for task in (*runs, *pool.promised.values()):
                if task.id not in round_.moved and not self._may_take(entry, claim, task):
                    left.take(round_.index.slots(task))
        return self._left[key]

    def _promised(self) -> Iterator[int]:
        return (WEIGHTS[task.level] for task in self._pool.promised.values())

    def _may_take(self, entry: Entry, claim: Depth, task: Task) -> bool:
        """True if the task may take what this one has, from a lower level or in a slice round."""
        pool, weight = self._pool, WEIGHTS[task.level]
        if not pool.clusters:
            return weight <= entry.weight
        of, depth = pool.clusters.of(task), self._round.coverage(pool)[task.id]
        own = bool(entry.cluster) and of == entry.cluster
        turn = weight == entry.weight and (own or depth >= entry.depth)
        return turn or outranks(entry, entry.cluster, claim, task, depth, of)
