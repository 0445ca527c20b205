"""Changes of the order by time: order keys are computed, slices end, the load is sampled.

``allocate.py`` calls this before it evaluates the waiting tasks.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.disciplines.timeshare.rule import (
    RULE,
    Load,
    sample_due,
    sampled,
    scale,
)
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.timers import Timer, TimerKind
from services.scheduler.domain.model.decisions import Reorder
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey, reason
from services.scheduler.domain.round import Round


def set_waiting_key(round_: Round, pool: Pool, task: Task) -> None:
    """Give a task that arrived, or is back, its place in the order."""
    finish = finish_of(round_, pool, task.owner)
    order_key = pool.discipline.waiting(pool, task, round_.now, finish)
    round_.order_keys[task.id] = order_key
    _note_finish(round_, pool, task.owner, order_key)


def finish_of(round_: Round, pool: Pool, owner: str) -> float:
    """The end of an owner's tags, with what this round noted; 0 if there is none."""
    found = round_.finishes.get((pool.group, owner))
    return pool.finishes.get(owner, 0.0) if found is None else found


def current_key(round_: Round, pool: Pool, task: Task, key: float) -> float:
    """A key in the order of this round."""
    discipline = pool.discipline
    if not discipline.by_user:
        return key
    return discipline.order(pool, key, finish_of(round_, pool, task.owner), round_.now)


def _note_finish(round_: Round, pool: Pool, owner: str, order_key: OrderKey) -> None:
    if order_key.user_finish > finish_of(round_, pool, owner):
        round_.finishes[pool.group, owner] = order_key.user_finish


def starting_key(round_: Round, pool: Pool, task: Task) -> OrderKey:
    """The order key of a run that starts."""
    order_key = round_.order_keys.get(task.id)
    if order_key is None and not pool.has_order_key(task):
        # It was promised its nodes under another discipline.
        order_key = pool.discipline.waiting(
            pool, task, round_.now, finish_of(round_, pool, task.owner)
        )
    if order_key is not None:
        task = replace(task, marks=order_key)
    begun = pool.discipline.starting(pool, task, round_.now, finish_of(round_, pool, task.owner))
    _note_finish(round_, pool, task.owner, begun)
    _wake_for(round_, begun)
    return begun


def end_slices(round_: Round, pool: Pool, timers: list[Timer]) -> None:
    """Give runs whose slice is over a new place in the order."""
    for task in [pool.foreign[task_id] for task_id in sorted(pool.foreign)]:
        # Begun under another discipline.
        if task.id not in round_.moved:
            _slice_over(round_, pool, task)
    for timer in timers:
        task = round_.index.tasks[timer.task_id]
        if task.id in round_.moved:
            continue
        if timer.kind is TimerKind.REKEYS and task.id not in round_.order_keys:
            _slice_over(round_, pool, task)


def _wake_for(round_: Round, order_key: OrderKey) -> None:
    """Wake at what this round noted: it is not among the index's timers yet."""
    round_.wake_at(order_key.rekey_at)
    round_.wake_at(order_key.held_until)


def _slice_over(round_: Round, pool: Pool, task: Task) -> None:
    finish = finish_of(round_, pool, task.owner)
    order_key = pool.discipline.slice_over(pool, task, round_.now, finish)
    _note_finish(round_, pool, task.owner, order_key)
    _wake_for(round_, order_key)
    why = reason(ReasonCode.SLICE_OVER, seconds=round(pool.attained(task, round_.now)))
    round_.reorder(Reorder(task.id, why, order_key))


def sample_load(round_: Round, pool: Pool, *, resumed: bool = False) -> None:
    """Note the load every half hour, if the discipline wants to know it.

    ``resumed``: this round takes tasks back from a pause, so something waits from now on.
    """
    if not pool.discipline.pays or not (pool.live() or resumed):
        return
    ledger = round_.ledger_of(pool)
    if ledger.sampled_at is None:
        round_.ledgers[pool.group] = replace(ledger, sampled_at=round_.now)
        return
    before = Load(ledger.load, ledger.sampled_at.timestamp())
    if not sample_due(RULE, before, round_.seconds):
        return
    age = round_.seconds - pool.live_since_sum / pool.live_units if pool.live() else 0.0
    load = sampled(RULE, before, age, round_.seconds)
    round_.ledgers[pool.group] = replace(
        ledger,
        load=load.mean_age_seconds,
        scale=scale(pool.tempo.rule, load),
        sampled_at=round_.now,
    )


def next_sample(round_: Round, pool: Pool) -> datetime | None:
    """When the load is noted next."""
    at = round_.ledger_of(pool).sampled_at
    if at is None or not pool.discipline.pays or not pool.live():
        return None
    return at + timedelta(seconds=RULE.sample_seconds)
