"""What an owner may want of a task after it was submitted: goals, modes and priorities.

Called by ``handlers.py`` for SetGoal, SetMode and SetPriority. Whether a task has ended is the
scheduler's fact; submit learns it from TaskStateChanged and refuses what can no longer matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from libs.contracts.messages import (
    Fence,
    FieldError,
    Goal,
    Priority,
    Refusal,
    RefusalCode,
    RunMode,
    TaskState,
)
from libs.contracts.task_states import TERMINAL
from libs.contracts.wording import field_error
from services.submit.domain.validate import refusal

# Of one task; rules have a few each.
REQUESTS_KEPT_MAX = 20
# Begins the name of what a rule of the monitor asks for.
RULE_PREFIX = "rule:"


class Change(Enum):
    """What a wish does."""

    APPLY = "apply"
    NOTHING = "nothing"


def short(word: Goal | Priority | RunMode | TaskState) -> str:
    """An enum's name as people write it: ``GOAL_RUN`` is ``run``."""
    for prefix in ("PRIORITY_", "TASK_STATE_", "GOAL_", "RUN_MODE_"):
        if word.startswith(prefix):
            return word.removeprefix(prefix).lower()
    raise AssertionError(word)


def decide_goal(
    wanted: Goal,
    *,
    current: Goal,
    state: TaskState,
    now: bool = False,
    current_now: bool = False,
    debugs: bool = False,
    takes_over: bool = False,
) -> Change | Refusal:
    """Apply it, leave it (it is so already), or refuse it. ``now``: end a run without asking it to
    save. What was to be done at once is not asked for more gently any more.

    ``debugs``: it is in debug mode. The scheduler may have paused it when its attempt ended, which
    submit may not have heard yet: it is resumed each time that somebody asks for it.
    ``takes_over``: a person asks, and a rule set the goal that the task has. A pause becomes that
    person's, so that the rule does not end it.
    """
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
    same = wanted is current and (current_now or not now) and not (debugs and wanted is Goal.RUN)
    same = same and not (takes_over and wanted is Goal.PAUSE)
    return Change.NOTHING if same else Change.APPLY


@dataclass(frozen=True, slots=True)
class ModeWish:
    """What another mode changes; None: nothing."""

    debug: bool | None = None
    goal: Goal | None = None


def decide_mode(
    wanted: RunMode,
    *,
    debug: bool,
    goal: Goal,
    state: TaskState,
    stay_paused: bool = False,
    takes_over: bool = False,
) -> ModeWish | Refusal:
    """What has to change so that a task with this debug mode and goal has the wanted mode, or why
    it is refused. ``stay_paused``: the normal mode resumes nothing, not even a task that the
    scheduler has paused because its attempt in debug mode ended; the pause becomes its goal.
    ``takes_over``: as for a goal."""
    if wanted is RunMode.UNSPECIFIED:
        fault = field_error("mode", short(wanted), "is not a mode", "use normal, debug or pause")
        return refusal(RefusalCode.INVALID, fault)
    if state in TERMINAL:
        return refusal(RefusalCode.CONFLICT, _ended("mode", short(wanted), state))
    if wanted is RunMode.PAUSE:
        return ModeWish(goal=None if goal is Goal.PAUSE and not takes_over else Goal.PAUSE)
    debug_wanted = wanted is RunMode.DEBUG
    changed = None if debug is debug_wanted else debug_wanted
    if debug_wanted:
        return ModeWish(debug=changed)
    if stay_paused:
        keeps = takes_over if goal is Goal.PAUSE else debug and state is TaskState.PAUSED
        return ModeWish(debug=changed, goal=Goal.PAUSE if keeps else None)
    return ModeWish(debug=changed, goal=Goal.RUN if goal is Goal.PAUSE else None)


@dataclass(frozen=True, slots=True)
class Carried:
    """A fenced command that was carried out before, and the revision of its change."""

    revision: int


# Of a request that was recalled before it was carried out; it is kept with the revision 0.
RECALLED = Refusal(code=RefusalCode.SUPERSEDED, detail="it was recalled before it was carried out")


def takes_over(asked_by: str, set_by: str) -> bool:
    """Whether a person asks for something that a rule has set."""
    return set_by.startswith(RULE_PREFIX) and not asked_by.startswith(RULE_PREFIX)


def check_fence(
    fence: Fence | None,
    *,
    attempt: int,
    goal_revision: int,
    requests: Sequence[tuple[str, int]],
) -> Carried | Refusal | None:
    """Whether a fenced command was carried out already, or comes too late; None: it may go on."""
    if fence is None:
        return None
    revision = dict(requests).get(fence.request) if fence.request else None
    if revision:
        return Carried(revision)
    if revision == 0 or fence.recall:
        return RECALLED
    if fence.attempt > attempt:
        detail = f"submit has not received attempt {fence.attempt} yet; try again"
        return Refusal(code=RefusalCode.UNAVAILABLE, detail=detail)
    if fence.attempt and fence.attempt != attempt:
        detail = f"it was meant for attempt {fence.attempt}, and attempt {attempt} is the present"
        return Refusal(code=RefusalCode.SUPERSEDED, detail=detail)
    changed = fence.goal_revision and fence.goal_revision != goal_revision
    other = Refusal(code=RefusalCode.SUPERSEDED, detail="another goal was set since")
    return other if changed else None


def with_request(
    requests: Sequence[tuple[str, int]], fence: Fence | None, revision: int
) -> tuple[tuple[str, int], ...]:
    """The last fenced commands of a task, with this one."""
    if fence is None or not fence.request:
        return tuple(requests)
    return (*requests, (fence.request, revision))[-REQUESTS_KEPT_MAX:]


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
