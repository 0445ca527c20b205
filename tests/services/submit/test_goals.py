from __future__ import annotations

import pytest

from libs.contracts.messages import Goal, Priority, Refusal, RefusalCode, TaskState
from libs.contracts.task_states import TERMINAL
from services.submit.domain.goals import Change, decide_goal, decide_priority


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("current", [goal for goal in Goal if goal is not Goal.UNSPECIFIED])
@pytest.mark.parametrize("wanted", Goal)
def test_every_goal_in_every_state_has_an_answer(
    wanted: Goal, current: Goal, state: TaskState
) -> None:
    verdict = decide_goal(wanted, current=current, state=state)
    if wanted is Goal.UNSPECIFIED:
        assert isinstance(verdict, Refusal)
        assert verdict.code is RefusalCode.INVALID
    elif state in TERMINAL:
        assert isinstance(verdict, Refusal)
        assert verdict.code is RefusalCode.CONFLICT
        assert "the task has " in verdict.detail
    else:
        assert verdict is (Change.NOTHING if wanted is current else Change.APPLY)


@pytest.mark.parametrize(
    ("wanted", "now", "current", "current_now", "verdict"),
    [
        (Goal.STOP, True, Goal.STOP, False, Change.APPLY),
        (Goal.STOP, True, Goal.STOP, True, Change.NOTHING),
        (Goal.STOP, False, Goal.STOP, True, Change.NOTHING),
        (Goal.STOP, False, Goal.PAUSE, True, Change.APPLY),
        (Goal.PAUSE, True, Goal.RUN, False, Change.APPLY),
    ],
)
def test_a_goal_with_now_outranks_the_same_goal_without_it(
    wanted: Goal, now: bool, current: Goal, current_now: bool, verdict: Change
) -> None:
    state = TaskState.PREEMPTING
    found = decide_goal(wanted, current=current, state=state, now=now, current_now=current_now)
    assert found is verdict


def test_the_goal_run_cannot_be_given_with_now() -> None:
    found = decide_goal(Goal.RUN, current=Goal.PAUSE, state=TaskState.PAUSED, now=True)
    assert isinstance(found, Refusal)
    assert [error.field for error in found.errors] == ["now"]


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("wanted", Priority)
def test_every_priority_in_every_state_has_an_answer(wanted: Priority, state: TaskState) -> None:
    verdict = decide_priority(wanted, current=Priority.NORMAL, state=state)
    if wanted is Priority.UNSPECIFIED or state in TERMINAL:
        assert isinstance(verdict, Refusal)
    else:
        assert verdict is (Change.NOTHING if wanted is Priority.NORMAL else Change.APPLY)
