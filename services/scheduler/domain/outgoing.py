"""What the scheduler says: decisions and changes of state as messages. Pure.

``apply.py`` and ``facts.py`` call this for every change, so nothing moves in silence.
"""

from __future__ import annotations

from datetime import datetime

from libs.contracts.base import Message
from libs.contracts.messages import (
    KillRequested,
    PreemptionRequested,
    RunAssigned,
    RunResumed,
    TaskState,
    TaskStateChanged,
)
from services.scheduler.domain.lifecycle import TERMINAL
from services.scheduler.domain.model import Assign, Decision, Kill, Preempt, Task

FIRST_ATTEMPT = 1


def state_changed(task: Task, previous: TaskState, now: datetime) -> TaskStateChanged:
    """The task as it stands now, for everybody who keeps a copy."""
    ended_at = now if task.exit is None else max(task.exit.exited_at, task.submitted_at)
    return TaskStateChanged(
        task_id=task.id,
        version=task.version,
        state=task.state,
        previous=previous,
        reason=task.reason,
        attempt=task.attempt,
        observed_revision=task.revision,
        started_at=task.first_started_at,
        finished_at=ended_at if task.state in TERMINAL else None,
        checkpoint=task.checkpoint,
        exit=task.exit,
        changed_at=now,
        owner=task.owner,
        team=task.team,
        group=task.group,
        held_gpus=task.held_gpus,
        held_nodes=len(task.placements),
        priority=task.priority,
        attempts_without_progress=task.attempts_without_progress,
    )


def run_message(task: Task, decision: Decision, now: datetime) -> tuple[Message, ...]:
    """What the launcher is to do about a decision: at most one message."""
    if isinstance(decision, Assign):
        # A first attempt is assigned, every later one resumed; never both.
        kind = RunAssigned if decision.attempt == FIRST_ATTEMPT else RunResumed
        return (
            kind(
                task_id=task.id,
                attempt=decision.attempt,
                owner=task.owner,
                spec=task.spec,
                placements=decision.placements,
                start_deadline_at=decision.start_deadline_at,
                resume_from=decision.resume_from,
                assigned_at=now,
                team=task.team,
            ),
        )
    if isinstance(decision, Preempt):
        return (
            PreemptionRequested(
                task_id=task.id,
                attempt=decision.attempt,
                reason=decision.reason,
                requested_at=now,
                deadline_at=decision.deadline_at,
                silent_deadline_at=decision.silent_deadline_at,
            ),
        )
    if isinstance(decision, Kill):
        return (
            KillRequested(
                task_id=task.id,
                attempt=decision.attempt,
                reason=decision.reason,
                requested_at=now,
            ),
        )
    return ()
