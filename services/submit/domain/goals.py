"""What an owner may want of a task after it was submitted: goals and priorities, as a table.

Called by ``handlers.py`` for SetGoal and SetPriority. Whether a task has ended is the scheduler's
fact; submit learns it from TaskStateChanged and refuses what can no longer matter.
"""

from __future__ import annotations

from enum import Enum

from libs.contracts.messages import (
    FieldError,
    Goal,
    Priority,
    Refusal,
    RefusalCode,
    TaskState,
)
from libs.contracts.task_states import TERMINAL
from libs.contracts.wording import field_error
from services.submit.domain.validate import refusal


class Change(Enum):
    """What a wish does."""

    APPLY = "apply"
    NOTHING = "nothing"


def short(word: Goal | Priority | TaskState) -> str:
    """An enum's name as people write it: ``GOAL_RUN`` is ``run``."""
    for prefix in ("PRIORITY_", "TASK_STATE_", "GOAL_"):
        if word.startswith(prefix):
            return word.removeprefix(prefix).lower()
    raise AssertionError(word)


def decide_goal(
    wanted: Goal, *, current: Goal, state: TaskState, now: bool = False, current_now: bool = False
) -> Change | Refusal:
    """Apply it, leave it (it is so already), or refuse it. ``now``: end a run without asking it to
    save. What was to be done at once is not asked for more gently any more."""
    if wanted is Goal.UNSPECIFIED:
        fault = field_error("goal", short(wanted), "is not a goal", "use run, pause or stop")
        return refusal(RefusalCode.INVALID, fault)
    if now and wanted is Goal.RUN:
        fault = field_error(
            "now", now, "goes with pause or stop", "leave it out to resume the task"
        )
        return refusal(RefusalCode.INVALID, fault)
    if state in TERMINAL:
        return refusal(RefusalCode.CONFLICT, _ended("goal", short(wanted), state))
    same = wanted is current and (current_now or not now)
    return Change.NOTHING if same else Change.APPLY


def decide_priority(wanted: Priority, *, current: Priority, state: TaskState) -> Change | Refusal:
    """Apply it, leave it (it is so already), or refuse it."""
    if wanted is Priority.UNSPECIFIED:
        levels = ", ".join(short(level) for level in Priority if level is not wanted)
        fault = field_error("priority", short(wanted), "is not a priority", f"use one of: {levels}")
        return refusal(RefusalCode.INVALID, fault)
    if state in TERMINAL:
        return refusal(RefusalCode.CONFLICT, _ended("priority", short(wanted), state))
    return Change.NOTHING if wanted is current else Change.APPLY


def _ended(field: str, value: str, state: TaskState) -> FieldError:
    fix = "run it again with: POST /v1/tasks/ID/retry"
    return field_error(field, value, f"the task has already {_END[state]}", fix)


_END = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.FAILED: "failed",
    TaskState.STOPPED: "been stopped",
    TaskState.REJECTED: "been rejected",
}
