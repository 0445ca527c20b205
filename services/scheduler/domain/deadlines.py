"""Deadlines are columns; ``moments.py`` knows when each comes. This says what then happens.

First step of ``decide``.
"""

from __future__ import annotations

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.goals import goal_reason
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.model.decisions import Kill
from services.scheduler.domain.model.lifecycle import PREEMPTING, STARTING, Trigger
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.round import Round


def expire(round_: Round, task_ids: list[str]) -> None:
    """Decide about every live run whose time is up."""
    for task in round_.individually(task_ids):
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
        why = _why_forced(round_, task)
        # The beneficiary stays the one the run was asked for.
        trigger, beneficiary = Trigger.ACK_EXPIRED, task.preempted_for
        round_.decide(Kill(task.id, task.live_attempt, why, trigger, beneficiary))
    else:
        why = reason(ReasonCode.MAX_RUN_TIME, seconds=task.spec.max_run_seconds)
        tell_to_go(round_, task, why, end_reason=why)


def _why_forced(round_: Round, task: Task) -> Reason:
    """Why a run that was asked to go is ended now."""
    if task.ends_now:
        return goal_reason(task.goal)
    seconds = round_.settings.silent_ack_seconds_max
    at = task.forced_at(seconds)
    if at is not None and at != task.ack_deadline_at:
        return reason(ReasonCode.NEVER_ASKED, seconds=seconds)
    return reason(ReasonCode.ACK_EXPIRED)
