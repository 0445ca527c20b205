from __future__ import annotations

import pytest

from libs.contracts.messages import Goal, Priority, Refusal, RefusalCode, TaskState
from services.submit.domain.goals import Change, judge_goal, judge_priority
from services.submit.domain.model import TERMINAL_STATES


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("current", [goal for goal in Goal if goal is not Goal.UNSPECIFIED])
@pytest.mark.parametrize("wanted", Goal)
def test_every_wish_in_every_state_has_an_answer(
    wanted: Goal, current: Goal, state: TaskState
) -> None:
    verdict = judge_goal(wanted, current=current, state=state)
    if wanted is Goal.UNSPECIFIED:
        assert isinstance(verdict, Refusal)
        assert verdict.code is RefusalCode.INVALID
    elif state in TERMINAL_STATES:
        assert isinstance(verdict, Refusal)
        assert verdict.code is RefusalCode.CONFLICT
        assert "the task has " in verdict.detail
    else:
        assert verdict is (Change.NOTHING if wanted is current else Change.APPLY)


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("wanted", Priority)
def test_every_priority_in_every_state_has_an_answer(wanted: Priority, state: TaskState) -> None:
    verdict = judge_priority(wanted, current=Priority.NORMAL, state=state)
    if wanted is Priority.UNSPECIFIED or state in TERMINAL_STATES:
        assert isinstance(verdict, Refusal)
    else:
        assert verdict is (Change.NOTHING if wanted is Priority.NORMAL else Change.APPLY)
