"""What a decision does to its task, and the messages that report the change.

``task_after`` and ``observations.py`` are the only code that changes a task, and both move its
state through ``TRANSITIONS``. Called by ``store.py`` when a plan is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from libs.contracts.base import Message
from libs.contracts.messages import (
    KillRequested,
    PreemptionRequested,
    Priority,
    Reason,
    RunAssigned,
    RunResumed,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.model.decisions import (
    Assign,
    Decision,
    Hold,
    Kill,
    Move,
    Preempt,
    Reject,
    Reorder,
)
from services.scheduler.domain.model.lifecycle import TRANSITIONS, Trigger
from services.scheduler.domain.model.rows import Task

FIRST_ATTEMPT = 1


@dataclass(frozen=True, slots=True)
class Change:
    """A task as it is now, and the messages that report it."""

    task: Task
    messages: tuple[Message, ...] = ()


def transitioned(task: Task, trigger: Trigger, why: Reason, **changes: Any) -> Task:  # noqa: ANN401  # fields
    """The task after a trigger. Raises KeyError if ``TRANSITIONS`` does not know the pair."""
    state = TRANSITIONS[task.state, trigger]
    return replace(task, state=state, version=task.version + 1, reason=why, **changes)


def applied(task: Task, decision: Decision, now: datetime) -> Change:
    """The task after a decision, with the messages that report it."""
    after = task_after(task, decision, now)
    if isinstance(decision, Reorder) and after.level is task.level:
        # Nobody outside the scheduler sees an order key.
        return Change(after)
    changed = state_changed(after, task.state, now)
    return Change(after, (*run_message(after, decision, now), changed))


def task_after(task: Task, decision: Decision, now: datetime) -> Task:
    """The task after a decision, without messages."""
    if isinstance(decision, Hold):
        return replace(
            task,
            version=task.version + 1,
            reason=decision.reason,
            accepted=task.accepted or decision.accepted,
            marks=task.marks if decision.order_key is None else decision.order_key,
            promised=task.promised if decision.reserved is None else decision.reserved,
            level=task.level if decision.level is None else decision.level,
            not_before_at=decision.not_before_at or task.not_before_at,
        )
    if isinstance(decision, Reorder):
        new_level = decision.level is not Priority.UNSPECIFIED
        return replace(
            task,
            version=task.version + new_level,
            marks=decision.order_key,
            level=decision.level if new_level else task.level,
        )
    return transitioned(task, decision.trigger, decision.reason, **_changes(task, decision, now))


def _changes(task: Task, decision: Decision, now: datetime) -> dict[str, Any]:
    """The fields that change besides state and reason."""
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
            "marks": decision.order_key,
            "began_from_checkpoint": task.checkpoint.no if task.checkpoint else 0,
            "debugging": task.debug,
            "debug_attempts": task.debug_attempts + task.debug,
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
        # The owner wants another try: starts and retries are counted from the beginning.
        return {
            "start_attempts": 0,
            "avoids": (),
            # One that is paused and resumed again and again keeps no node busy with starts.
            "not_before_at": task.not_before_at if task.short_yields > 1 else None,
            "unserved_since": now,
        }
    if isinstance(decision, Move | Reject):
        # Resuming needs to know how long the pause was; a run that ends paused notes its exit.
        pauses = decision.trigger is Trigger.PAUSE
        return {"promised": (), "unserved_since": now if pauses else task.unserved_since}
    return {}


def state_changed(task: Task, previous: TaskState, now: datetime) -> TaskStateChanged:
    """The event that publishes the task as it is now."""
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
        held_nodes=len({each.node_id for each in task.placements}),
        priority=task.priority,
        attempts_without_progress=task.attempts_without_progress,
        retries_used=task.retries_used,
        class_retries=task.class_retries,
    )


def run_message(task: Task, decision: Decision, now: datetime) -> tuple[Message, ...]:
    """What the launcher has to do about a decision: at most one message."""
    if isinstance(decision, Assign):
        # A first attempt is assigned, every later one resumed; never both.
        kind = RunAssigned if decision.attempt == FIRST_ATTEMPT else RunResumed
        return (
            kind(
                task_id=task.id,
                attempt=decision.attempt,
                owner=task.owner,
                spec=task.spec_of_attempt,
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
                now=task.ends_now,
            ),
        )
    return ()
