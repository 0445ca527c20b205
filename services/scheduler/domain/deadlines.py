"""Deadlines are columns: this compares them with ``now`` and says what has expired.

First step of ``decide``. What is not expired yet sets the moment of the next round.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.lifecycle import PREEMPTING, RUNNING, STARTING, Trigger
from services.scheduler.domain.model import Kill, Task
from services.scheduler.domain.round import Round
from services.scheduler.domain.why import reason


def expires_at(task: Task) -> datetime | None:
    """When the task's live run expires in its present state: start, ack or run time; or never."""
    if task.state is STARTING:
        return task.start_deadline_at
    if task.state is PREEMPTING:
        return task.ack_deadline_at
    run_seconds_max = task.spec.max_run_seconds
    if task.state is RUNNING and run_seconds_max is not None and task.run_started_at is not None:
        return task.run_started_at + timedelta(seconds=run_seconds_max - task.run_seconds)
    return None


def expire(round_: Round) -> None:
    """Decide about every live run whose time is up."""
    expired: list[Task] = []
    for task in round_.snapshot.held.values():
        moment = expires_at(task)
        if moment is not None and moment <= round_.now:
            expired.append(task)
        else:
            round_.wake_at(moment)
    for task in sorted(expired, key=lambda each: each.id):
        _expire(round_, task)


def _expire(round_: Round, task: Task) -> None:
    assert task.live_attempt is not None, "only live runs expire"
    settings = round_.settings
    if task.state is STARTING:
        attempts = task.start_attempts + 1
        used_up = attempts >= settings.start_attempts_max
        end = reason(ReasonCode.START_ATTEMPTS_USED_UP, attempts=attempts) if used_up else None
        seconds = settings.start_deadline_seconds
        why = reason(ReasonCode.START_EXPIRED, attempts=attempts, seconds=seconds)
        trigger = Trigger.START_EXPIRED
        round_.decide(Kill(task.id, task.live_attempt, why, trigger, end_reason=end))
    elif task.state is PREEMPTING:
        why = reason(ReasonCode.ACK_EXPIRED)
        # The beneficiary stays the one the run was asked for.
        trigger, beneficiary = Trigger.ACK_EXPIRED, task.preempted_for
        round_.decide(Kill(task.id, task.live_attempt, why, trigger, beneficiary))
    else:
        why = reason(ReasonCode.MAX_RUN_TIME, seconds=task.spec.max_run_seconds)
        tell_to_go(round_, task, why, end_reason=why)
