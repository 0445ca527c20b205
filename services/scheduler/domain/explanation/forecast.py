"""When a waiting task will start, if things go on as they are: a bounded look ahead. Pure.

Runs end one after the other as they are expected to; at each end the tasks before this one are
placed in their order, then this one. Called by ``explain.py``; ``course.py`` plays it. It is a
forecast, not a promise: what it takes for granted is said with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from libs.contracts.messages import Forecast, ReasonCode
from libs.contracts.reasons import level_name
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.explanation.board import expected_left
from services.scheduler.domain.explanation.course import Course, Stopped
from services.scheduler.domain.explanation.standing import Standing
from services.scheduler.domain.explanation.words import counted, named, span
from services.scheduler.domain.lifecycle import PREEMPTING
from services.scheduler.domain.model import Task
from services.scheduler.domain.order import is_auto
from services.scheduler.domain.placement.place import slots_of

AHEAD_MAX = 1_000
RUNS_MAX = 20_000
HORIZON_SECONDS = 30 * 86_400.0

# Waits that no run's end brings to an end.
_UNKNOWN = {
    ReasonCode.WAITS_FOR_INVENTORY: "its nodes are not known yet",
    ReasonCode.NEVER_FITS: "no known nodes could hold it",
    ReasonCode.QUOTA_NEVER_FITS: "its quota never allows it",
    ReasonCode.CLUSTER_TOO_SMALL_NOW: "nobody knows when nodes come back or are added",
}


def forecast(standing: Standing, now: datetime) -> Forecast:
    """The moment, or why there is none."""
    if standing.task.promised:
        return _promised(standing, now)
    unknown = _UNKNOWN.get(standing.why.code) or _too_much(standing)
    if unknown is not None:
        return Forecast(unknown=unknown)
    course = Course(standing, now, horizon=now + timedelta(seconds=HORIZON_SECONDS))
    found = course.run()
    said = tuple(_assumptions(standing, course))
    if isinstance(found, Stopped):
        return Forecast(unknown=_stopped(course, found, now), assumptions=said)
    return Forecast(starts_at=datetime.fromtimestamp(found, UTC), assumptions=said)


def _too_much(standing: Standing) -> str | None:
    ahead = standing.above + standing.before
    if ahead > AHEAD_MAX:
        return f"{ahead} tasks are before it, and no more than {AHEAD_MAX} are looked through"
    runs = sum(map(len, standing.pool.running.values()))
    if runs > RUNS_MAX:
        return f"{runs} runs hold nodes, and no more than {RUNS_MAX} are looked through"
    return None


def _stopped(course: Course, why: Stopped, now: datetime) -> str:
    unknown = ""
    if course.endless:
        unknown = "nobody knows how long these runs take, which hold nodes that it needs"
        unknown += f": {named(course.endless)}"
    if why is Stopped.TOO_LONG:
        passed = span(course.seconds - now.timestamp())
        far = f"not within {passed}, which is as far as was looked ({course.steps} steps)"
        return f"{far}; {unknown}" if unknown else far
    return unknown or (
        "not even when everything that runs has ended: others before it or limits are in its way"
    )


def _promised(standing: Standing, now: datetime) -> Forecast:
    """It starts when the last run that holds what it is promised has gone."""
    index, pool = standing.round.index, standing.pool
    holders: dict[str, Task] = {}
    for node_id, mask in slots_of(standing.task):
        for owner, bits in index.holders.get(node_id, {}).items():
            if bits & (mask or bits):
                holders[owner] = index.tasks[owner]
    latest = now
    for task in holders.values():
        if task.state is PREEMPTING and task.ack_deadline_at is not None:
            end = task.ack_deadline_at
        elif task.id in pool.leaving:
            end = now
        else:
            left = expected_left(pool, task, pool.attained(task, now))
            if left is None:
                return Forecast(unknown=f"nobody knows how long {task.id} takes")
            end = now + timedelta(seconds=left)
        latest = max(latest, end)
    return Forecast(
        starts_at=latest,
        assumptions=(
            "the runs that make room for it take as long to save as they may, and go then",
            "nothing fails, and nobody more entitled takes what it is promised",
        ),
    )


def _assumptions(standing: Standing, course: Course) -> Iterator[str]:
    pool = standing.pool
    yield "nothing new is submitted, nothing fails, and nodes and policies stay as they are"
    ends = pool.history.ends
    if course.by_history:
        yield (
            "runs end at their owners' time limits; where there is none, after as long as half of"
            f" the tasks like them took ({counted(ends, 'end')} known in group {pool.group})"
        )
    else:
        yield "runs end at their owners' time limits"
    yield "runs that are asked to go take as long to save as they may"
    ahead = standing.above + standing.before
    if ahead:
        one = "the task before it starts as soon as it can"
        yield one if ahead == 1 else f"the {ahead} tasks before it start as soon as they can"
    yield from _of_policy(standing, course)


def _of_policy(standing: Standing, course: Course) -> Iterator[str]:
    pool, discipline = standing.pool, standing.pool.discipline
    if not course.whole and discipline.filling is not Filling.STRICT:
        yield "tasks behind it that fit sooner do not delay it"
    if pool.protected_seconds > 0:
        yield "no run of a lower level begins meanwhile and is protected then"
    if discipline.pays:
        first = "it is" if course.granted else "nobody is"
        yield f"turns are paid from the pool's budget; {first} granted the first place"
    if is_auto(standing.task):
        yield f"it counts at level {level_name(standing.entry.level)}, as it does now"
    if pool.guarded:
        yield "no owner's flood is held back"
    if pool.clusters:
        yield "guarantees cover what they cover now, and take back nothing more for others"
