"""``decide(snapshot, now) -> Plan``: the whole policy, as a table of contents.

1. ``urgent.py``: expired deadlines, the goals of owners, nodes that are being drained
2. ``allocate.py``, for each pool that changed or is due:
   a. ``slices/order_keys.py``, ``slices/levels.py``: slices end, runs change their level
   b. promises that are void are taken back, and those whose nodes are free are redeemed
   c. the waiting tasks are evaluated in order (``queue/walk.py``); one that nothing in
      ``blockers.py`` stops gets free nodes (``placement/``), or nodes that less entitled runs leave
      (``preemption/``), or at last nodes of equals whose turn is over (``slices/slice_round.py``)

A round evaluates only what changed since the last one that settled, or what time has brought; on a
snapshot made from bare rows that is everything. Everything is deterministic, independent of the
order of the input, and a second call on the result of the first decides nothing new.
"""

from __future__ import annotations

from datetime import datetime

from services.scheduler.domain.allocate import allocate, note_displaced
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.facts.timers import Timer, TimerKind
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.round import Round
from services.scheduler.domain.slices import order_keys
from services.scheduler.domain.urgent import converge, drain, expire


class UndecidedError(Exception):
    """Deciding failed: about this group, or about something urgent that concerns this task. Both
    empty: it is unknown which."""

    def __init__(self, group: str, task_id: str) -> None:
        super().__init__(f"deciding failed about group {group!r}, task {task_id!r}")
        self.group = group
        self.task_id = task_id


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """What to do at this moment. Pure: the same snapshot and ``now`` give the same plan.

    A defect that shows as an exception becomes ``UndecidedError``: decided again without what that
    names (``snapshot.left_out``), everything else is decided.
    """
    round_ = Round(snapshot, now)
    try:
        return _decided(round_)
    except Exception as error:
        raise UndecidedError(round_.group, round_.task_id) from error


def _decided(round_: Round) -> Plan:
    snapshot, now, index = round_.snapshot, round_.now, round_.index
    due = index.due(now)
    expire(round_, [timer.task_id for timer in due if timer.kind is TimerKind.EXPIRES])
    resumed = converge(round_)
    drain(round_)
    urgent = len(round_.decisions)
    by_pool = _by_pool(round_, due)
    back: dict[str, list[Task]] = {}
    for task in resumed:
        back.setdefault(task.group, []).append(task)
    for group, pool in sorted(index.pools.items()):
        if group in snapshot.left_out:
            continue
        round_.group = group
        touched = (
            pool.full_scan
            or pool.arrived
            or pool.relevel
            or group in by_pool
            or group in back
            or group in round_.releasing
            or group in round_.displaced
            or (group in round_.groups_left and pool.holds_back)
            or (pool.due_at is not None and pool.due_at <= now)
            or (pool.slice_round_at is not None and pool.slice_round_at > now)
        )
        if touched:
            allocate(round_, pool, by_pool.get(group, []), back.get(group, []))
        else:
            order_keys.sample_load(round_, pool)
            round_.wake_at(pool.due_at)
        round_.wake_at(order_keys.next_sample(round_, pool))
    for group in sorted(round_.displaced):
        round_.group = group
        note_displaced(round_, index.pools[group])
    round_.group = ""
    round_.wake_at(index.timers.next_after(round_.seconds))
    return Plan(
        version=snapshot.version,
        decided_at=now,
        decisions=tuple(round_.decisions),
        explanations=round_.explanations,
        due_at=round_.due_at,
        ledgers=tuple(round_.ledgers.values()),
        scans=round_.scans,
        urgent=urgent,
        left_out=snapshot.left_out,
        left_out_tasks=snapshot.left_out_tasks,
    )


def _by_pool(round_: Round, due: list[Timer]) -> dict[str, list[Timer]]:
    """What has come due, by the pool that it concerns."""
    found: dict[str, list[Timer]] = {}
    for timer in due:
        if timer.kind is not TimerKind.EXPIRES:
            group = round_.index.tasks[timer.task_id].group
            found.setdefault(group, []).append(timer)
            if timer.kind is TimerKind.OPENS and round_.quota_usage.across:
                # From now on the run may go for a task of its owner in another group.
                owner = round_.index.tasks[timer.task_id].owner
                for other, pool in round_.index.pools.items():
                    if other != group and owner in pool.owners:
                        found.setdefault(other, []).append(timer)
    return found
