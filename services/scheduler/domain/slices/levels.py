"""The level at which a run counts: it follows the priority and the running time, as quotas allow.

A run may be raised or lowered by its owner, and it sinks by the policy's demotions. Each change is
a start at the new level as far as quotas are concerned: it happens only if the quota of that level
admits the run. Else a task could start at a level where its owner has quota, and be raised to one
where the owner has none.

- A raise waits at the old level until the quota of the new one admits the run.
- A run that is to sink counts at the highest level, from the one that it is to sink to downwards,
  whose quota admits it. It does not stay where it is: else a full quota of a low level would keep
  its owner's runs at a high one for good. Where no lower level admits it, it stays.

Called by ``allocate.py`` before it evaluates the waiting tasks, and by ``explanation.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from libs.contracts.messages import Priority, ReasonCode, Unit
from libs.contracts.reasons import level_name
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.timers import Timer, TimerKind, level_at
from services.scheduler.domain.model.decisions import Reorder
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import LEVELS, WEIGHTS, reason
from services.scheduler.domain.round import Round


class _Move(NamedTuple):
    """A run that counts at another level than it should."""

    task: Task
    wanted: Priority

    @property
    def rises(self) -> bool:
        return WEIGHTS[self.wanted] > WEIGHTS[self.task.level]

    @property
    def order(self) -> tuple[bool, int, datetime, str]:
        """Raises first: they free quota of the levels that others sink to."""
        return not self.rises, -WEIGHTS[self.wanted], self.task.submitted_at, self.task.id


def update_levels(round_: Round, pool: Pool, timers: list[Timer]) -> frozenset[str]:
    """Let runs count at the levels that they should; returns those that a quota stops."""
    due = {timer.task_id for timer in timers if timer.kind is TimerKind.SINKS}
    stopped: set[str] = set()
    moves: list[_Move] = []
    for task_id in due | pool.relevel | pool.level_blocked:
        task = round_.index.tasks[task_id]
        wanted = level_at(task, pool.policy, round_.now)
        if wanted is task.level:
            continue
        stopped.add(task_id)
        # A run that is requested to leave in this round keeps its level until it has left.
        if task_id not in round_.moved:
            moves.append(_Move(task, wanted))
    moves.sort(key=lambda move: move.order)
    while moves:
        left: list[_Move] = []
        for move in moves:
            level = _admitted(round_, move)
            if level is None:
                left.append(move)
                continue
            round_.reorder(_reordering(round_, pool, move, level))
            if level is move.wanted:
                stopped.discard(move.task.id)
        if len(left) == len(moves):
            break
        # What these gave back may let others follow.
        moves = left
    return frozenset(stopped)


def _admitted(round_: Round, move: _Move) -> Priority | None:
    """The level that the run moves to; None: it stays where it is."""
    if move.rises:
        open_to = [move.wanted]
    else:
        open_to = [level for level in LEVELS if WEIGHTS[level] <= WEIGHTS[move.wanted]]
    for level in open_to:
        if round_.quota_usage.excess_of_move(move.task, level) is None:
            return level
    return None


def _reordering(round_: Round, pool: Pool, move: _Move, level: Priority) -> Reorder:
    task = move.task
    names = {"priority": task.level.value, "to": level.value}
    base = task.level if task.is_auto else task.priority
    if not move.rises and WEIGHTS[move.wanted] < WEIGHTS[base]:
        seconds = round(pool.attained(task, round_.now))
        why = reason(ReasonCode.LEVEL_SANK, names=names, seconds=seconds)
    else:
        why = reason(ReasonCode.LEVEL_CHANGED, names=names)
    return Reorder(task.id, why, round_.order_key_of(task), level)


def outlook(index: Index, task: Task, now: datetime) -> Iterator[str]:
    """For ``explain``: at which level a run counts, and what it is to count at, where they differ.

    Which limit stops it is counted at this moment.
    """
    pool = index.pools[task.group]
    if task.id not in pool.level_blocked and task.id not in pool.relevel:
        return
    wanted = level_at(task, pool.policy, now)
    if wanted is task.level:
        return
    excess = index.quota_usage.excess_of_move(task, wanted)
    current, target = level_name(task.level), level_name(wanted)
    if excess is None:
        yield f"it counts at level {current} and will count at level {target} at once"
        return
    unit = "nodes" if excess.limit.unit is Unit.NODES else "GPUs"
    yield (
        f"it counts at level {current}: it will count at level {target} as soon as the quota there"
        f" admits it, of which {excess.held} of {excess.limit.limit} {unit} are held"
    )
