"""What time does to the order: marks are made, slices end, the load is sampled.

``allocate.py`` calls this before it looks at who waits.
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
from services.scheduler.domain.facts.timers import Kind, Moment
from services.scheduler.domain.model.decisions import Reorder
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey, reason
from services.scheduler.domain.round import Round


def mark_waiting(round_: Round, pool: Pool, task: Task) -> None:
    """Give a task that arrived, or is back, its place in the order."""
    finish = finish_of(round_, pool, task.owner)
    marks = pool.discipline.waiting(pool, task, round_.now, finish)
    round_.marks[task.id] = marks
    _note_finish(round_, pool, task.owner, marks)


def finish_of(round_: Round, pool: Pool, owner: str) -> float:
    """What is kept of an owner, with what this round noted; 0 if nothing is."""
    found = round_.finishes.get((pool.group, owner))
    return pool.finishes.get(owner, 0.0) if found is None else found


def order(round_: Round, pool: Pool, task: Task, key: float) -> float:
    """A key in the order of this moment."""
    discipline = pool.discipline
    if not discipline.by_user:
        return key
    return discipline.order(pool, key, finish_of(round_, pool, task.owner), round_.now)


def _note_finish(round_: Round, pool: Pool, owner: str, marks: OrderKey) -> None:
    if marks.user_finish > finish_of(round_, pool, owner):
        round_.finishes[pool.group, owner] = marks.user_finish


def mark_starting(round_: Round, pool: Pool, task: Task) -> OrderKey:
    """The marks of a run that begins."""
    marks = round_.marks.get(task.id)
    if marks is None and not pool.marked(task):
        # It was promised its nodes under another discipline.
        marks = pool.discipline.waiting(pool, task, round_.now, finish_of(round_, pool, task.owner))
    if marks is not None:
        task = replace(task, marks=marks)
    begun = pool.discipline.starting(pool, task, round_.now, finish_of(round_, pool, task.owner))
    _note_finish(round_, pool, task.owner, begun)
    _wake(round_, begun)
    return begun


def tend(round_: Round, pool: Pool, moments: list[Moment]) -> None:
    """Runs whose slice is over get a new place in the order."""
    for task in [pool.foreign[task_id] for task_id in sorted(pool.foreign)]:
        # Begun under another discipline.
        if task.id not in round_.moved:
            _slice_over(round_, pool, task)
    for moment in moments:
        task = round_.index.tasks[moment.task_id]
        if task.id in round_.moved:
            continue
        if moment.kind is Kind.REKEYS and task.id not in round_.marks:
            _slice_over(round_, pool, task)


def _wake(round_: Round, marks: OrderKey) -> None:
    """What is noted in this round is not among the index's moments yet."""
    round_.wake_at(marks.rekey_at)
    round_.wake_at(marks.held_until)


def _slice_over(round_: Round, pool: Pool, task: Task) -> None:
    finish = finish_of(round_, pool, task.owner)
    marks = pool.discipline.slice_over(pool, task, round_.now, finish)
    _note_finish(round_, pool, task.owner, marks)
    _wake(round_, marks)
    why = reason(ReasonCode.SLICE_OVER, seconds=round(pool.attained(task, round_.now)))
    round_.remark(Reorder(task.id, why, marks))


def sample(round_: Round, pool: Pool, *, resumed: bool = False) -> None:
    """Note the load every half hour, if the discipline wants to know it.

    ``resumed``: this round takes tasks back from a pause, so something waits from now on.
    """
    if not pool.discipline.pays or not (pool.live() or resumed):
        return
    book = round_.book(pool)
    if book.sampled_at is None:
        round_.ledgers[pool.group] = replace(book, sampled_at=round_.now)
        return
    before = Load(book.load, book.sampled_at.timestamp())
    if not sample_due(RULE, before, round_.seconds):
        return
    age = round_.seconds - pool.live_moments / pool.live_units if pool.live() else 0.0
    load = sampled(RULE, before, age, round_.seconds)
    round_.ledgers[pool.group] = replace(
        book, load=load.mean_age_seconds, scale=scale(pool.tempo.rule, load), sampled_at=round_.now
    )


def next_sample(round_: Round, pool: Pool) -> datetime | None:
    """When the load is noted next."""
    at = round_.book(pool).sampled_at
    if at is None or not pool.discipline.pays or not pool.live():
        return None
    return at + timedelta(seconds=RULE.sample_seconds)
