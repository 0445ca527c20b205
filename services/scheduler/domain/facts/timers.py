"""Timers: every moment at which time alone changes something about a task, in one sorted list.

``index.py`` keeps it; ``decide`` takes what has come since the last round that settled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from libs.contracts.messages import Priority
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.lifecycle import PREEMPTING, QUEUED, RUNNING, STARTING
from services.scheduler.domain.model.rows import Task


class TimerKind(StrEnum):
    """What a timer is about."""

    EXPIRES = "expires"
    RETRIES = "retries"
    REKEYS = "rekeys"
    SINKS = "sinks"
    # From here on the run may be preempted.
    OPENS = "opens"


class Timer(NamedTuple):
    """When, whose, what; seconds since the epoch."""

    at: float
    task_id: str
    kind: TimerKind


def expires_at(task: Task, settings: PolicySettings) -> datetime | None:
    """When the task's live run expires in its present state: start, ack or run time; or never."""
    if task.state is STARTING:
        return task.start_deadline_at
    if task.state is PREEMPTING:
        return task.forced_at(settings.silent_ack_seconds_max)
    return task.run_expires_at(settings) if task.state is RUNNING else None


def sinks_at(task: Task, policy: GroupPolicy) -> datetime | None:
    """When a running task has been at its level as long as it may; or never."""
    if task.state is not RUNNING:
        return None
    for demotion in policy.demotions:
        if demotion.level is task.level:
            return _has_run(task, demotion.after_seconds)
    return None


def _has_run(task: Task, seconds: float) -> datetime | None:
    """From when on the live run has run so long, with the runs before it; None: not started."""
    if task.run_started_at is None:
        return None
    return task.run_started_at + timedelta(seconds=max(0.0, seconds - task.run_seconds))


def level_at(task: Task, policy: GroupPolicy, now: datetime) -> Priority:
    """The level that a live run is to count at: its priority's, or what that sank to by running.

    AUTO came to a level when the run began, which sinks like any other.
    """
    auto = task.priority in (Priority.AUTO, Priority.UNSPECIFIED)
    level = task.level if auto else policy.demoted(task.priority, task.run_seconds)
    steps = {demotion.level: demotion for demotion in policy.demotions}
    while step := steps.pop(level, None):
        at = _has_run(task, step.after_seconds)
        if at is None or at > now:
            break
        level = step.to
    return level


def protected_until(task: Task, protected_seconds: float) -> datetime | None:
    """Until when the run may not be preempted at all; None if it is not protected."""
    if task.state is not RUNNING or task.run_started_at is None or protected_seconds <= 0:
        return None
    return task.run_started_at + timedelta(seconds=protected_seconds)


def timers_of(
    task: Task, policy: GroupPolicy, protected_seconds: float, settings: PolicySettings
) -> Iterator[Timer]:
    """The timers of one task, in the state it is in."""
    if task.state is QUEUED:
        if task.not_before_at is not None:
            yield Timer(task.not_before_at.timestamp(), task.id, TimerKind.RETRIES)
        return
    if not task.holds:
        return
    pairs = (
        (expires_at(task, settings), TimerKind.EXPIRES),
        (sinks_at(task, policy), TimerKind.SINKS),
        (protected_until(task, protected_seconds), TimerKind.OPENS),
    )
    for at, kind in pairs:
        if at is not None:
            yield Timer(at.timestamp(), task.id, kind)
    if task.state is RUNNING:
        order_key = task.marks
        if order_key.rekey_at is not None:
            yield Timer(order_key.rekey_at.timestamp(), task.id, TimerKind.REKEYS)
        if order_key.held_until is not None:
            yield Timer(order_key.held_until.timestamp(), task.id, TimerKind.OPENS)


class Timers:
    """All of them, sorted."""

    def __init__(self) -> None:
        self._all: list[Timer] = []

    def add(self, timer: Timer) -> None:
        """Put one in."""
        insort(self._all, timer)

    def remove(self, timer: Timer) -> None:
        """Take one out."""
        place = bisect_left(self._all, timer)
        assert self._all[place] == timer, "what was put in is there"
        del self._all[place]

    def of(self, task_ids: Container[str]) -> Timers:
        """Those of some tasks."""
        found = Timers()
        found._all = [timer for timer in self._all if timer.task_id in task_ids]
        return found

    def between(self, after: float | None, until: float) -> list[Timer]:
        """Those after one moment (None: from the beginning), up to another and with it."""
        start = 0 if after is None else bisect_right(self._all, after, key=_at)
        return self._all[start : bisect_right(self._all, until, key=_at)]

    def next_after(self, timer: float) -> datetime | None:
        """When the next one comes."""
        place = bisect_right(self._all, timer, key=_at)
        if place == len(self._all):
            return None
        return datetime.fromtimestamp(self._all[place].at, UTC)

    def __len__(self) -> int:
        return len(self._all)


def _at(timer: Timer) -> float:
    return timer.at
