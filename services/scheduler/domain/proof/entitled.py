"""Who may take nodes from whom: the part of ``check`` about victims.

Works from the rows: levels, order keys and guarantees are compared anew, not taken from ``decide``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import takewhile

from libs.contracts.messages import Priority, ReasonCode
from services.scheduler.domain.clusters import UNCOVERED, Clusters, Depth, entitlement
from services.scheduler.domain.lifecycle import RUNNING
from services.scheduler.domain.marks import Marks
from services.scheduler.domain.model import (
    WEIGHTS,
    Assign,
    Decision,
    Hold,
    Kill,
    Mark,
    Plan,
    Preempt,
    Task,
)
from services.scheduler.domain.order import is_auto
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.proof.conserve import taken_back
from services.scheduler.domain.proof.violations import Fault, Violation
from services.scheduler.domain.snapshot import Snapshot

# Reasons for which a run makes room for another task.
TAKING = frozenset(
    {
        ReasonCode.PREEMPTED_BY,
        ReasonCode.RECLAIMED_BY,
        ReasonCode.TURN_OF,
        ReasonCode.MOVED_FOR,
    }
)


def wrong_victim(
    snapshot: Snapshot, plan: Plan, task: Task, decision: Preempt | Kill
) -> Iterator[Violation]:
    """A victim needs a beneficiary that waits, is promised its nodes, and is more entitled."""
    better = snapshot.tasks.get(decision.beneficiary)
    kept = [
        each
        for each in plan.decisions
        if isinstance(each, Hold) and each.task_id == decision.beneficiary and each.promised
    ]
    if better is None or not kept:
        yield Violation(Fault.NO_BENEFICIARY, task.id, decision.beneficiary)
        return
    level = _level(snapshot, better, decision)
    code = decision.reason.code
    if code is ReasonCode.TURN_OF:
        yield from _turn(snapshot, plan, task, decision, level)
    elif code is ReasonCode.MOVED_FOR:
        if not _may_move(snapshot, plan, task, better, decision):
            yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"may not be moved for {better.id}")
    elif not _may_take(snapshot, plan, task, better, level):
        yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"for {better.id}")
    pool = snapshot.pools[task.group]
    protected = timedelta(seconds=pool.protected_seconds)
    started = task.run_started_at if protected and task.state is RUNNING else None
    # Another clock tells the start: where nothing is protected, it may be still to come.
    if started is not None and started + protected > plan.decided_at:
        yield Violation(Fault.VICTIM_PROTECTED, task.id)


def _level(snapshot: Snapshot, better: Task, decision: Preempt | Kill) -> Priority:
    """The level the waiting task counts at; what AUTO came to is written in the reason."""
    named = decision.reason.names.get("priority", "")
    if is_auto(better) and named:
        return Priority(named)
    return snapshot.pools[better.group].level(better)


def _may_take(snapshot: Snapshot, plan: Plan, task: Task, better: Task, level: Priority) -> bool:
    """True if the run is of a lower level and covered no better, or another's and covered less."""
    lower = WEIGHTS[task.level] < WEIGHTS[level]
    clusters = snapshot.pools[task.group].clusters
    if not clusters:
        return lower
    own, theirs = _depths(snapshot, plan, task, better, level)
    of = clusters.of(better)
    return (lower and theirs >= own) or (theirs > own and (not of or clusters.of(task) != of))


def _may_move(
    snapshot: Snapshot, plan: Plan, task: Task, better: Task, decision: Preempt | Kill
) -> bool:
    """True if a guarantee covers the waiting task, no better one the run, and that has a place.

    Whether the place is one, and free, is looked at where promises are.
    """
    pool = snapshot.pools[task.group]
    if not pool.clusters or better.group != task.group or not decision.moves_to:
        return False
    clusters, runs = _counted(snapshot, plan, pool)
    depth = clusters.depth(clusters.of(better), pool.size(better))
    return depth < UNCOVERED and clusters.coverage(runs, pool.sizes)[task.id] >= depth


def _covered_better(
    snapshot: Snapshot, plan: Plan, task: Task, better: Task, level: Priority
) -> bool:
    """True if a guarantee covers the run, and none so well the waiting task of another's."""
    own, theirs = _depths(snapshot, plan, task, better, level)
    clusters = snapshot.pools[task.group].clusters
    return clusters.of(task) != clusters.of(better) and theirs < own


def _depths(
    snapshot: Snapshot, plan: Plan, task: Task, better: Task, level: Priority
) -> tuple[Depth, Depth]:
    """How the waiting task would be covered, and how the run is.

    Between two of one virtual cluster, the waiting task uses its guarantee before lower levels do.
    """
    pool = snapshot.pools[task.group]
    clusters, runs = _counted(snapshot, plan, pool)
    own, size = clusters.of(better), pool.size(better)
    depth = clusters.depth(own, size)
    rows = [
        (*entitlement(each), pool.sizes[each.id], clusters.of(each))
        for each in sorted(runs, key=entitlement)
    ]
    if own and clusters.of(task) == own:
        first = [row for row in rows if -row[0] >= WEIGHTS[level] and row[2] != better.id]
        *_, (_, depth) = clusters.counted([*first, (-WEIGHTS[level], 0.0, "", size, own)])
    return depth, dict(clusters.counted(rows))[task.id]


def _counted(snapshot: Snapshot, plan: Plan, pool: Pool) -> tuple[Clusters, list[Task]]:
    """What the virtual clusters hold but for promises that the plan takes back; and all of it."""
    clusters = Clusters(pool.policy)
    runs = [each for each in snapshot.held.values() if each.group == pool.group]
    runs += pool.promised.values()
    released = taken_back(plan)
    for each in runs:
        if each.id not in released:
            clusters.charge(clusters.of(each), pool.size(each))
    return clusters, runs


def _turn(
    snapshot: Snapshot, plan: Plan, task: Task, decision: Preempt | Kill, level: Priority
) -> Iterator[Violation]:
    pool, better = snapshot.pools[task.group], snapshot.tasks[decision.beneficiary]
    # In the order of the plan: what owners get after this decision is for the next to count.
    before = list(takewhile(lambda each: each is not decision, plan.decisions))
    if not pool.discipline.preempts:
        yield Violation(Fault.NO_TURNS, task.id, pool.discipline.name)
    if pool.clusters and _covered_better(snapshot, plan, task, better, level):
        yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"covered better than {better.id}")
    if task.level is not level:
        yield Violation(Fault.VICTIM_NOT_LOWER, task.id, f"{task.level} is not {level}")
    noted = {
        each.task_id: each.marks
        for each in plan.decisions
        if isinstance(each, Hold | Mark) and each.marks is not None
    }
    marks = noted.get(task.id, task.marks)
    ahead = noted.get(better.id, better.marks)
    reach = _key(snapshot, better, ahead, plan, before)
    if not ahead.granted:
        victims = [each for each in plan.decisions if isinstance(each, Preempt | Kill)]
        taken = sum(
            pool.size(snapshot.tasks[each.task_id])
            for each in victims
            # A run that was asked to go earlier, and is killed at its deadline now, is no victim
            # of this turn.
            if each.beneficiary == better.id and each.reason.code is ReasonCode.TURN_OF
        )
        ratio = taken / pool.size(better)
        reach = pool.discipline.reach(pool, better, ahead, reach, ratio)
    if _key(snapshot, task, marks, plan, before) < reach + pool.discipline.lead(plan.decided_at):
        yield Violation(Fault.VICTIM_NOT_LATER, task.id, f"before {better.id}")
    if marks.held_until is not None and marks.held_until > plan.decided_at:
        yield Violation(Fault.VICTIM_PROTECTED, task.id, "held")


def _key(
    snapshot: Snapshot, task: Task, marks: Marks, plan: Plan, before: Sequence[Decision]
) -> float:
    """A task's place in the order of the plan's moment, after these of its decisions."""
    pool = snapshot.pools[task.group]
    if not pool.discipline.by_user:
        return pool.key(marks)
    finish = pool.finishes.get(task.owner, 0.0)
    for each in before:
        noted = each.marks if isinstance(each, Assign | Hold | Mark) else None
        if noted is not None and snapshot.tasks[each.task_id].owner == task.owner:
            finish = max(finish, noted.user_finish)
    return pool.discipline.order(pool, pool.key(marks), finish, plan.decided_at)
