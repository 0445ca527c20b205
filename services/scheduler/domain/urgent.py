"""The urgent decisions of a round: expired deadlines, the goals of owners, nodes to be drained.

The first three steps of ``decide``. They give nodes to no task. Deadlines are columns, and
``timers.py`` knows when each expires. Goals follow the table ``GOALS``. Runs on draining nodes are
requested to save and leave, and then wait like any other task.
"""

from __future__ import annotations

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain.model.decisions import Kill, Move
from services.scheduler.domain.model.lifecycle import GOALS, PREEMPTING, STARTING, Trigger
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.preemption.release import request_release
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
        # The beneficiary stays the one of the request.
        trigger, beneficiary = Trigger.ACK_EXPIRED, task.preempted_for
        round_.decide(Kill(task.id, task.live_attempt, why, trigger, beneficiary))
    elif task.debugging:
        why = reason(ReasonCode.DEBUG_ENDED, seconds=task.debug_limit(settings))
        request_release(round_, task, why, end_reason=why)
    else:
        why = reason(ReasonCode.MAX_RUN_TIME, seconds=task.spec.max_run_seconds)
        request_release(round_, task, why, end_reason=why)


def _why_forced(round_: Round, task: Task) -> Reason:
    """Why a run that was requested to leave is ended now."""
    if task.ends_now:
        return task.goal_reason
    seconds = round_.settings.silent_ack_seconds_max
    at = task.forced_at(seconds)
    if at is not None and at != task.ack_deadline_at:
        return reason(ReasonCode.NEVER_ASKED, seconds=seconds)
    return reason(ReasonCode.ACK_EXPIRED)


def converge(round_: Round) -> list[Task]:
    """Apply the goals and modes; returns the tasks that are back in the queue."""
    resumed: list[Task] = []
    for task in round_.individually(round_.index.unsettled - round_.moved):
        if task.changes_mode:
            mode = "debug" if task.debug else "normal"
            why = reason(ReasonCode.MODE_CHANGED, names={"mode": mode})
            request_release(round_, task, why)
            continue
        trigger = GOALS[task.goal, task.state]
        assert trigger is not None, "the index holds only tasks whose goal asks for something"
        why = task.goal_reason
        if task.holds:
            request_release(round_, task, why)
            continue
        round_.decide(Move(task.id, trigger, why))
        if trigger is Trigger.RESUME:
            resumed.append(task)
        else:
            round_.groups_left.add(task.group)
            round_.explanations[task.id] = why
    return resumed


def drain(round_: Round) -> None:
    """Request the runs on draining nodes to leave, whole gangs at once."""
    for task in round_.individually(round_.index.drained):
        node_id = round_.totals.drained_node(task)
        if node_id is not None and task.id not in round_.moved:
            request_release(round_, task, reason(ReasonCode.NODE_DRAINED, names={"node": node_id}))
