"""Run modes at submission and later: what submit accepts, notes and publishes."""

from __future__ import annotations

import pytest

from libs.contracts.messages import (
    DebugProgram,
    Goal,
    GoalChanged,
    ModeChanged,
    Reemit,
    Refusal,
    RefusalCode,
    RunMode,
    SetGoal,
    SetMode,
    TaskState,
)
from libs.contracts.task_states import TERMINAL
from services.submit.domain.facts import Defaults, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.goals import Change, ModeWish, decide_goal, decide_mode
from services.submit.domain.spec_fields import check_fields
from services.submit.store import TaskRow
from tests.kit.service import ServiceHarness
from tests.kit.specs import TASK_ID, asked
from tests.services.submit.test_handlers import create, moved

GOALS = (Goal.RUN, Goal.PAUSE, Goal.STOP)


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("stay_paused", [False, True])
@pytest.mark.parametrize("wanted", RunMode)
def test_every_mode_in_every_state_has_an_answer(
    wanted: RunMode, stay_paused: bool, debug: bool, goal: Goal, state: TaskState
) -> None:
    found = decide_mode(wanted, debug=debug, goal=goal, state=state, stay_paused=stay_paused)
    if wanted is RunMode.UNSPECIFIED:
        assert isinstance(found, Refusal)
        assert found.code is RefusalCode.INVALID
        assert found.errors[0].fix == "use normal, debug or pause"
    elif state in TERMINAL:
        assert isinstance(found, Refusal)
        assert found.code is RefusalCode.CONFLICT
        assert "the task has " in found.detail
    else:
        assert isinstance(found, ModeWish)
        # What was asked for holds afterwards, and asking again changes nothing.
        after = debug if found.debug is None else found.debug, found.goal or goal
        assert after[0] is (debug if wanted is RunMode.PAUSE else wanted is RunMode.DEBUG)
        if wanted is RunMode.PAUSE:
            assert after[1] is Goal.PAUSE
        elif wanted is RunMode.NORMAL and not stay_paused and goal is Goal.PAUSE:
            assert after[1] is Goal.RUN
        elif wanted is RunMode.NORMAL and stay_paused and debug and state is TaskState.PAUSED:
            assert after[1] is Goal.PAUSE
        else:
            assert after[1] is goal
        again = decide_mode(
            wanted, debug=after[0], goal=after[1], state=state, stay_paused=stay_paused
        )
        assert again == ModeWish()


@pytest.mark.parametrize("goal", [goal for goal in Goal if goal is not Goal.UNSPECIFIED])
def test_a_task_in_debug_mode_is_resumed_each_time_that_it_is_asked_for(goal: Goal) -> None:
    found = decide_goal(goal, current=goal, state=TaskState.RUNNING, debugs=True)
    assert found is (Change.APPLY if goal is Goal.RUN else Change.NOTHING)


async def test_a_task_that_is_submitted_paused_has_the_goal_pause(service: ServiceHarness) -> None:
    task = (await service.ask(create(run_mode=RunMode.PAUSE))).task_id
    (row,) = await service.rows(TaskRow)
    assert (row.goal, row.goal_revision, row.debug) == (Goal.PAUSE, 1, False)
    await service.published()
    reply = await service.ask(SetGoal(task_id=task, goal=Goal.RUN, asked_by="ann"))
    assert reply.revision == 2
    assert [event.goal for event in await service.published()] == [Goal.RUN]


async def test_modes_are_published_with_a_growing_revision(service: ServiceHarness) -> None:
    task = (await service.ask(create())).task_id
    await service.published()

    async def ask(mode: RunMode, *, stay_paused: bool = False) -> int:
        wish = SetMode(task_id=task, mode=mode, asked_by="ann", stay_paused=stay_paused)
        return (await service.ask(wish)).revision

    assert [
        await ask(RunMode.DEBUG),
        await ask(RunMode.DEBUG),
        await ask(RunMode.PAUSE),
        await ask(RunMode.NORMAL, stay_paused=True),
        await ask(RunMode.DEBUG),
        await ask(RunMode.NORMAL),
        await ask(RunMode.NORMAL),
    ] == [2, 2, 3, 4, 5, 7, 7]
    at = service.clock.now()

    def mode(wanted: RunMode, revision: int) -> ModeChanged:
        return ModeChanged(
            task_id=task, mode=wanted, revision=revision, changed_by="ann", changed_at=at
        )

    def goal(wanted: Goal, revision: int) -> GoalChanged:
        return GoalChanged(
            task_id=task, goal=wanted, revision=revision, changed_by="ann", changed_at=at
        )

    assert await service.published() == [
        mode(RunMode.DEBUG, 2),
        goal(Goal.PAUSE, 3),
        mode(RunMode.NORMAL, 4),
        mode(RunMode.DEBUG, 5),
        mode(RunMode.NORMAL, 6),
        goal(Goal.RUN, 7),
    ]
    assert (await service.ask(Reemit(service="submit"))).events == 3
    assert {type(event) for event in await service.published()} >= {ModeChanged, GoalChanged}


async def test_a_task_whose_debug_mode_has_ended_stays_paused(service: ServiceHarness) -> None:
    task = (await service.ask(create(run_mode=RunMode.DEBUG))).task_id
    # The scheduler pauses it; nobody has changed its goal.
    await service.handle(moved(task, TaskState.PAUSED, 5))
    await service.published()
    await service.ask(SetMode(task_id=task, mode=RunMode.NORMAL, stay_paused=True))
    goal, mode = await service.published()
    assert isinstance(goal, GoalChanged)
    assert isinstance(mode, ModeChanged)
    assert (goal.goal, goal.revision) == (Goal.PAUSE, 2)
    assert (mode.mode, mode.revision) == (RunMode.NORMAL, 3)
    # It can be resumed afterwards.
    await service.ask(SetMode(task_id=task, mode=RunMode.NORMAL))
    (resumed,) = await service.published()
    assert isinstance(resumed, GoalChanged)
    assert resumed.goal is Goal.RUN


async def test_a_mode_of_an_ended_or_unknown_task_is_refused(service: ServiceHarness) -> None:
    task = (await service.ask(create())).task_id
    await service.handle(moved(task, TaskState.SUCCEEDED, 5))
    await service.published()
    for mode in (RunMode.NORMAL, RunMode.DEBUG, RunMode.PAUSE):
        reply = await service.ask(SetMode(task_id=task, mode=mode))
        assert reply.refusal.code is RefusalCode.CONFLICT
        assert "the task has already succeeded" in reply.refusal.detail
    reply = await service.ask(SetMode(task_id="tx", mode=RunMode.DEBUG))
    assert reply.refusal.code is RefusalCode.NOT_FOUND
    assert await service.published() == []


def test_the_default_mode_is_normal() -> None:
    spec = fill_in(asked(), task_id=TASK_ID, defaults=Defaults())
    assert spec.run_mode is RunMode.NORMAL


@pytest.mark.parametrize(
    ("debug", "fields"),
    [
        (DebugProgram(command=("sleep", "600")), []),
        (DebugProgram(command=("/usr/sbin/sshd",), args=("-D",)), []),
        (DebugProgram(), ["roles[0].debug.command"]),
        (DebugProgram(args=("-D",)), ["roles[0].debug.command"]),
        (DebugProgram(command=("",)), ["roles[0].debug.command"]),
        (DebugProgram(command=("a", "b\0")), ["roles[0].debug.command[1]"]),
    ],
)
def test_a_debug_program_has_a_command(debug: DebugProgram, fields: list[str]) -> None:
    spec = fill_in(asked(), task_id=TASK_ID, defaults=Defaults())
    role = spec.roles[0].model_copy(update={"debug": debug})
    spec = spec.model_copy(update={"roles": (role,)})
    assert [error.field for error in check_fields(spec, Limits())] == fields
