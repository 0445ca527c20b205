"""What a decision does to its task. With ``facts.py`` the only code that makes a changed task;
both move the state through ``TRANSITIONS`` and nowhere else.

Called by ``store.py`` when a plan is committed, and by tests that play plans forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from libs.contracts.base import Message
from libs.contracts.messages import Priority, Reason
from services.scheduler.domain.lifecycle import TRANSITIONS, Trigger
from services.scheduler.domain.model import (
    Assign,
    Decision,
    Hold,
    Kill,
    Mark,
    Move,
    Preempt,
    Reject,
    Task,
)
from services.scheduler.domain.outgoing import run_message, state_changed


@dataclass(frozen=True, slots=True)
class Change:
    """A task as it is now, and what is to be said about it."""

    task: Task
    messages: tuple[Message, ...] = ()


def moved(task: Task, trigger: Trigger, why: Reason, **changes: Any) -> Task:  # noqa: ANN401  # fields
    """The task after a trigger of ``TRANSITIONS``; KeyError if the table does not know the pair."""
    state = TRANSITIONS[task.state, trigger]
    return replace(task, state=state, version=task.version + 1, reason=why, **changes)


def applied(task: Task, decision: Decision, now: datetime) -> Change:
    """The task after a decision, with the messages that tell it."""
    after = task_after(task, decision, now)
    if isinstance(decision, Mark) and after.level is task.level:
        # Only the scheduler's own notes changed.
        return Change(after)
    told = state_changed(after, task.state, now)
    return Change(after, (*run_message(after, decision, now), told))


def task_after(task: Task, decision: Decision, now: datetime) -> Task:
    """The task after a decision, with nothing said about it."""
    if isinstance(decision, Hold):
        return replace(
            task,
            version=task.version + 1,
            reason=decision.reason,
            accepted=task.accepted or decision.accepted,
            marks=task.marks if decision.marks is None else decision.marks,
            promised=task.promised if decision.promised is None else decision.promised,
            level=task.level if decision.level is None else decision.level,
            not_before_at=decision.not_before_at or task.not_before_at,
        )
    if isinstance(decision, Mark):
        sinks = decision.level is not Priority.UNSPECIFIED
        return replace(
            task,
            version=task.version + sinks,
            marks=decision.marks,
            level=decision.level if sinks else task.level,
        )
    return moved(task, decision.trigger, decision.reason, **_changes(task, decision, now))


def _changes(task: Task, decision: Decision, now: datetime) -> dict[str, Any]:
    """The columns that change beside state and reason."""
    if isinstance(decision, Assign):
        return {
            "attempt": decision.attempt,
            "live_attempt": decision.attempt,
            "level": decision.level,
            "accepted": True,
            "placements": decision.placements,
            "assigned_at": now,
            "start_deadline_at": decision.start_deadline_at,
            "not_before_at": None,
            "promised": (),
            "marks": decision.marks,
            "began_from_checkpoint": task.checkpoint.no if task.checkpoint else 0,
        }
    if isinstance(decision, Preempt):
        return {
            "ack_deadline_at": decision.deadline_at,
            "preempted_for": decision.beneficiary,
            "preempt_requested_at": now,
            "end_reason": decision.end_reason or task.end_reason,
        }
    if isinstance(decision, Kill):
        return {
            "preempted_for": decision.beneficiary,
            "end_reason": decision.end_reason or task.end_reason,
            "start_attempts": task.start_attempts + (decision.trigger is Trigger.START_EXPIRED),
        }
    if isinstance(decision, Move) and decision.trigger is Trigger.RESUME:
        # The owner asks anew: patience with starts and retries begins anew.
        return {
            "start_attempts": 0,
            "avoids": (),
            "not_before_at": None,
            "unserved_since": now,
        }
    if isinstance(decision, Move | Reject):
        # Resuming needs to know how long the pause was; a run that ends paused notes its exit.
        pauses = decision.trigger is Trigger.PAUSE
        return {"promised": (), "unserved_since": now if pauses else task.unserved_since}
    return {}
