"""Which runs hold the nodes or quota that a task waits for, and until when. Called by
``explanation.py``."""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from libs.contracts.messages import Holder, Priority, ReasonCode
from services.scheduler.domain.explain.group_simulation import GroupSimulation
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.limits.quota_usage import Account, account_of, exceeds
from services.scheduler.domain.model.lifecycle import KILLING, PREEMPTING
from services.scheduler.domain.model.rows import Task

HOLDERS_MAX = 10
# Reasons for waiting that the end of a run removes.
_HELD = frozenset(
    {
        ReasonCode.WAITS_FOR_CAPACITY,
        ReasonCode.WAITS_BEHIND_OTHERS,
        ReasonCode.WAITS_FOR_VICTIMS,
        ReasonCode.WAITS_FOR_QUOTA,
        ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER,
        ReasonCode.WAITS_FOR_SHARE,
    }
)


def holders(base: GroupSimulation, task: Task, level: Priority) -> tuple[tuple[Holder, ...], int]:
    """The first runs by their known ends, and how many there are in all. ``level`` is that at
    which the task would count: a task that waits has none of its own."""
    why = base.why or task.reason
    if why.code not in _HELD:
        return (), 0
    pool = base.index.pools[task.group]
    runs = base.index.held.values()
    if why.code is ReasonCode.WAITS_FOR_QUOTA:
        accounts = _accounts(base, task, level)
        found = [run for run in runs if _counts(base, run, accounts)]
    else:
        found = [run for run in runs if _holds(base, task, run, why.code)]
    first = heapq.nsmallest(
        HOLDERS_MAX, (_holder(pool, run, base.now) for run in found), key=_sooner
    )
    return tuple(first), len(found)


def _holds(base: GroupSimulation, task: Task, run: Task, code: ReasonCode) -> bool:
    """True if the end of the run releases some of the nodes that the task waits for."""
    index = base.index
    if run.group != task.group:
        return False
    if code is ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER:
        of = index.pools[task.group].clusters.of
        return of(run) == of(task)
    wanted = {placed.node_id for placed in task.promised}
    if wanted:
        return any(placed.node_id in wanted for placed in run.placements)
    selector = set(task.shape.selector)
    nodes = (index.nodes.get(placed.node_id) for placed in run.placements)
    return any(node is not None and selector <= set(node.labels) for node in nodes)


def _accounts(base: GroupSimulation, task: Task, level: Priority) -> frozenset[Account]:
    """Of which limits the end of a run releases what the task waits for: none if one of them
    permits less than the task needs, whatever ends."""
    usage, need = base.index.quota_usage, base.index.totals.need(task.shape)
    rows = usage.rows(task, level)
    over = [row for row in rows if exceeds(row, usage.held(row, task), need.of(row.unit))]
    # A task at AUTO may count at another level when runs end.
    if not task.is_auto and any(row.forbids or need.of(row.unit) > row.limit for row in over):
        return frozenset()
    return frozenset(account_of(row, task) for row in over or rows)


def _counts(base: GroupSimulation, run: Task, accounts: frozenset[Account]) -> bool:
    """True if one of these limits counts the run, for the same subject."""
    rows = base.index.quota_usage.rows(run, run.level)
    return any(account_of(row, run) in accounts for row in rows)


def _holder(pool: Pool, run: Task, now: datetime) -> Holder:
    leaving = run.state in (PREEMPTING, KILLING)
    ends_at = run.ack_deadline_at if leaving else None
    if not leaving and run.expected_seconds is not None:
        left = max(0.0, run.expected_seconds - pool.attained(run, now))
        ends_at = now + timedelta(seconds=left)
    slice_ends_at = None if leaving else run.marks.rekey_at
    return Holder(
        task_id=run.id,
        nodes=pool.size(run),
        ends_at=ends_at,
        slice_ends_at=slice_ends_at if slice_ends_at and slice_ends_at > now else None,
        leaving=leaving,
    )


def _sooner(holder: Holder) -> tuple[float, float, str]:
    never = float("inf")
    return (
        holder.ends_at.timestamp() if holder.ends_at else never,
        holder.slice_ends_at.timestamp() if holder.slice_ends_at else never,
        holder.task_id,
    )
