"""Run modes: tasks that are submitted paused, and attempts in debug mode."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.messages import (
    Continuation,
    ExitKind,
    Goal,
    GoalChanged,
    ModeChanged,
    Override,
    Priority,
    Reason,
    ReasonCode,
    Role,
    RunMode,
    TaskState,
)
from libs.contracts.reasons import render
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.lifecycle import (
    LEAVING,
    RunEnd,
    Trigger,
    exit_rule,
)
from services.scheduler.domain.model.observations import Drop, early_goal, early_mode, on_submitted
from services.scheduler.domain.model.rows import EarlyFacts, Task
from tests.kit.builders import a_checkpoint, a_node, a_spec, a_task, submitted_event
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

HOLDING = (TaskState.STARTING, TaskState.RUNNING, TaskState.PREEMPTING, TaskState.KILLING)


def a_harness(
    mode: RunMode = RunMode.NORMAL, *, start: bool = True, max_run_seconds: float | None = None
) -> DomainHarness:
    """One node, and one task that has it if its mode allows."""
    harness = DomainHarness([a_node()])
    spec = a_spec(priority=Priority.LOW).model_copy(
        update={"run_mode": mode, "max_run_seconds": max_run_seconds}
    )
    harness.submit(a_task("t", spec=spec))
    harness.rounds()
    if start:
        harness.start("t")
        harness.until(10.0)
    return harness


def task_of(harness: DomainHarness) -> Task:
    return harness.tasks["t"]


def spec_mode(harness: DomainHarness) -> RunMode:
    return task_of(harness).spec_of_attempt.run_mode


def test_a_task_that_is_submitted_paused_is_never_queued() -> None:
    event = submitted_event(a_task("t"))
    event = event.model_copy(
        update={"spec": event.spec.model_copy(update={"run_mode": RunMode.PAUSE})}
    )
    change = on_submitted(event, None, at(0))
    assert (change.task.state, change.task.goal) == (TaskState.PAUSED, Goal.PAUSE)
    assert [each.state for each in change.messages] == [TaskState.PAUSED]  # type: ignore[attr-defined]
    harness = a_harness(RunMode.PAUSE, start=False)
    assert task_of(harness).state is TaskState.PAUSED
    harness.want("t", Goal.RUN)
    harness.rounds()
    assert task_of(harness).state is TaskState.STARTING
    assert spec_mode(harness) is RunMode.NORMAL


def test_facts_that_overtake_the_submission_count_by_their_revisions() -> None:
    event = submitted_event(a_task("t"))
    event = event.model_copy(
        update={"spec": event.spec.model_copy(update={"run_mode": RunMode.PAUSE})}
    )
    resumed = GoalChanged(task_id="t", goal=Goal.RUN, revision=2, changed_at=at(0))
    debug = ModeChanged(task_id="t", mode=RunMode.DEBUG, revision=3, changed_at=at(0))
    older = ModeChanged(task_id="t", mode=RunMode.NORMAL, revision=2, changed_at=at(0))
    early = EarlyFacts(a_task("t").id)
    for fact in (debug, older):
        early = early_mode(early, fact)
    task = on_submitted(event, early_goal(early, resumed), at(0)).task
    assert (task.state, task.debug, task.mode_revision, task.revision) == (
        TaskState.QUEUED,
        True,
        3,
        3,
    )
    assert observations.on_mode_changed(task, older, at(1)) is Drop.OLD_REVISION
    assert observations.on_mode_changed(task, debug, at(1)) is Drop.OLD_REVISION


@pytest.mark.parametrize("kind", [ExitKind.OK, ExitKind.FAILED])
def test_a_debug_attempt_that_ends_by_itself_pauses_its_task(kind: ExitKind) -> None:
    harness = a_harness(RunMode.DEBUG)
    assert spec_mode(harness) is RunMode.DEBUG
    harness.exit("t", kind)
    harness.until(100.0)
    task = task_of(harness)
    assert (task.state, task.reason.code) == (TaskState.PAUSED, ReasonCode.DEBUG_ENDED)
    assert (task.placements, task.retries_used, task.attempts_without_progress) == ((), 0, 0)
    text = render(task.reason)
    assert "attempt 1, in debug mode, has ended" in text
    assert "turn debug mode off before that to run it" in text
    # It is resumed in debug mode, and goes on normally once that is off.
    harness.want("t", Goal.RUN)
    harness.rounds()
    assert (task_of(harness).state, spec_mode(harness)) == (TaskState.STARTING, RunMode.DEBUG)
    harness.start("t")
    harness.exit("t", kind)
    harness.mode("t", RunMode.NORMAL)
    harness.rounds()
    assert (task_of(harness).state, spec_mode(harness)) == (TaskState.STARTING, RunMode.NORMAL)
    assert task_of(harness).attempt == 3


def test_a_pause_of_the_owner_outlasts_the_end_of_debug_mode() -> None:
    harness = a_harness(RunMode.DEBUG)
    harness.exit("t", ExitKind.OK)
    harness.want("t", Goal.PAUSE)
    harness.mode("t", RunMode.NORMAL)
    harness.until(50.0)
    assert task_of(harness).state is TaskState.PAUSED
    harness.want("t", Goal.RUN)
    harness.rounds()
    assert (task_of(harness).state, spec_mode(harness)) == (TaskState.STARTING, RunMode.NORMAL)


def test_debug_mode_on_a_running_attempt_asks_it_to_save_first() -> None:
    harness = a_harness()
    harness.mode("t", RunMode.DEBUG)
    harness.rounds()
    task = task_of(harness)
    assert (task.state, task.reason.code) == (TaskState.PREEMPTING, ReasonCode.MODE_CHANGED)
    assert render(task.reason) == "ends, to start again in debug mode"
    harness.save("t")
    harness.exit("t", ExitKind.PREEMPTED)
    harness.rounds()
    assert (task_of(harness).state, spec_mode(harness)) == (TaskState.STARTING, RunMode.DEBUG)
    # Off: nothing is asked, and the checkpoint of the normal attempt is the resume point.
    harness.start("t")
    harness.mode("t", RunMode.NORMAL)
    harness.rounds()
    assert task_of(harness).state is TaskState.KILLING
    harness.exit("t", ExitKind.KILLED)
    harness.until(harness.seconds + 2.0)
    task = task_of(harness)
    assert (task.state, task.debugging, task.attempt) == (TaskState.STARTING, False, 3)
    assert task.began_from_checkpoint == 1


def test_modes_of_waiting_and_paused_tasks_are_only_noted() -> None:
    harness = a_harness(RunMode.PAUSE, start=False)
    harness.mode("t", RunMode.DEBUG)
    harness.rounds()
    assert (task_of(harness).state, task_of(harness).debug) == (TaskState.PAUSED, True)
    harness.want("t", Goal.RUN)
    harness.rounds()
    assert spec_mode(harness) is RunMode.DEBUG


@pytest.mark.parametrize(
    ("own", "limit"), [(None, 8 * 3600.0), (60.0, 60.0), (9 * 3600.0, 8 * 3600.0)]
)
def test_a_debug_attempt_has_a_limit_of_time(own: float | None, limit: float) -> None:
    harness = a_harness(RunMode.DEBUG, max_run_seconds=own)
    harness.until(limit - 1.0)
    assert task_of(harness).state is TaskState.RUNNING
    harness.until(limit + 1.0)
    assert task_of(harness).state is TaskState.KILLING
    harness.exit("t", ExitKind.KILLED)
    harness.until(limit + 100.0)
    task = task_of(harness)
    assert (task.state, task.reason.code) == (TaskState.PAUSED, ReasonCode.DEBUG_ENDED)
    assert render(task.reason).startswith("has been in debug mode for its maximum of ")
    # The limit of the task is one of its own program.
    harness.mode("t", RunMode.NORMAL)
    harness.rounds()
    harness.start("t")
    harness.until(limit + 130.0)
    assert task_of(harness).state is TaskState.RUNNING


def test_a_victim_in_debug_mode_is_not_waited_for_and_returns_in_debug_mode() -> None:
    harness = a_harness(RunMode.DEBUG)
    harness.submit(a_task("high", priority=Priority.HIGH))
    harness.rounds()
    assert task_of(harness).state is TaskState.KILLING
    harness.exit("t", ExitKind.KILLED)
    harness.rounds()
    assert (task_of(harness).state, task_of(harness).debug) == (TaskState.QUEUED, True)
    harness.start("high")
    harness.exit("high", ExitKind.OK)
    harness.rounds()
    assert (task_of(harness).state, spec_mode(harness)) == (TaskState.STARTING, RunMode.DEBUG)


def test_an_attempt_in_debug_mode_is_not_the_first_one_of_its_program() -> None:
    role = Role(name="worker", replicas=1, command=("a",), resume=Override(command=("b",)))
    spec = a_spec().model_copy(update={"roles": (role,)})
    task = a_task("t", spec=spec)

    def resumes(attempt: int, debug_attempts: int, *, debugging: bool) -> bool:
        row = replace(task, attempt=attempt, debug_attempts=debug_attempts, debugging=debugging)
        return row.spec_of_attempt.roles[0].resume is not None

    assert resumes(2, 0, debugging=False)
    assert not resumes(2, 1, debugging=False)
    assert resumes(3, 1, debugging=False)
    assert not resumes(2, 2, debugging=True)
    assert resumes(2, 1, debugging=True)
    # It goes on from a checkpoint of another task: even its first start resumes.
    before = Continuation(task_id="other", chain="other", checkpoint=a_checkpoint())
    task = replace(task, spec=spec.model_copy(update={"continues": before}))
    assert resumes(2, 1, debugging=False)


def test_an_attempt_in_debug_mode_does_not_look_like_work() -> None:
    harness = a_harness()
    harness.save("t")
    harness.mode("t", RunMode.DEBUG)
    harness.rounds()
    harness.exit("t", ExitKind.PREEMPTED)
    harness.rounds()
    harness.start("t")
    assert render(task_of(harness).reason) == "attempt 2 waits for people in debug mode"


@pytest.mark.parametrize(
    ("kind", "state", "goal", "debug"),
    list(
        product(
            [kind for kind in ExitKind if kind is not ExitKind.UNSPECIFIED],
            HOLDING,
            [Goal.RUN, Goal.PAUSE, Goal.STOP],
            [False, True],
        )
    ),
)
def test_no_end_in_debug_mode_finishes_or_fails_its_task(
    kind: ExitKind, state: TaskState, goal: Goal, debug: bool
) -> None:
    for final, reason in product((False, True), (None, ReasonCode.DEBUG_ENDED)):
        end = RunEnd(
            kind=kind,
            state=state,
            goal=goal,
            end_reason=reason,
            retries_left=False,
            final=final,
            debugging=True,
            debug=debug,
        )
        found = exit_rule(end, has_limit=True)
        assert not found.spends_retry
        if goal is Goal.STOP:
            assert found.trigger is Trigger.EXIT_STOPPED
        elif goal is Goal.PAUSE:
            assert found.trigger is Trigger.EXIT_PAUSED
        else:
            by_itself = kind in (ExitKind.OK, ExitKind.FAILED) and state not in LEAVING
            ended = debug and (by_itself or reason is not None)
            assert found.trigger is (Trigger.EXIT_PAUSED if ended else Trigger.EXIT_REQUEUED)


def test_a_pause_of_the_owner_after_debug_mode_ended_has_its_own_reason() -> None:
    harness = a_harness(RunMode.DEBUG)
    harness.exit("t", ExitKind.OK)
    harness.want("t", Goal.PAUSE)
    assert task_of(harness).reason.code is ReasonCode.GOAL_PAUSE
    harness.mode("t", RunMode.NORMAL)
    harness.until(100.0)
    task = task_of(harness)
    assert (task.state, task.reason.code) == (TaskState.PAUSED, ReasonCode.GOAL_PAUSE)


def test_modes_that_change_again_and_again_make_the_task_wait() -> None:
    harness = a_harness()
    waits: list[float] = []
    for number in range(8):
        harness.mode("t", RunMode.NORMAL if number % 2 else RunMode.DEBUG)
        harness.rounds()
        assert task_of(harness).state in LEAVING
        harness.exit("t", ExitKind.KILLED)
        harness.rounds()
        before = harness.seconds
        while task_of(harness).state is TaskState.QUEUED:
            task = task_of(harness)
            assert task.reason.code is ReasonCode.WAITS_FOR_RETRY
            assert "that a change of the mode or a pause ended" in render(task.reason)
            harness.until(harness.seconds + 1.0)
        waits.append(harness.seconds - before)
        harness.start("t")
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60]
    # An attempt that runs for a while ends the row.
    harness.until(harness.seconds + 40.0)
    harness.mode("t", RunMode.DEBUG)
    harness.rounds()
    harness.exit("t", ExitKind.KILLED)
    harness.rounds()
    assert task_of(harness).state is TaskState.STARTING


def test_a_task_that_is_paused_and_resumed_again_and_again_waits() -> None:
    harness = a_harness()
    for waits in (False, True):
        harness.want("t", Goal.PAUSE)
        harness.rounds()
        harness.exit("t", ExitKind.PREEMPTED)
        harness.rounds()
        harness.want("t", Goal.RUN)
        harness.rounds()
        assert (task_of(harness).state is TaskState.QUEUED) is waits
        harness.until(harness.seconds + 5.0)
        harness.start("t")


@settings(max_examples=100, deadline=None)
@given(
    changes=st.lists(
        st.sampled_from(
            [RunMode.DEBUG, RunMode.NORMAL, Goal.RUN, Goal.PAUSE, ExitKind.OK, ExitKind.KILLED]
        ),
        max_size=12,
    )
)
def test_what_is_asked_for_last_holds_in_the_end(changes: list[RunMode | Goal | ExitKind]) -> None:
    """Whatever happens in between, every attempt has the mode that was wanted when it began, and a
    task that nobody pauses runs in the mode that is wanted."""
    harness = a_harness(start=False)
    for change in [*changes, RunMode.DEBUG, Goal.RUN]:
        task = task_of(harness)
        if isinstance(change, RunMode):
            harness.mode("t", change)
        elif isinstance(change, Goal):
            harness.want("t", change)
        elif task.live_attempt is not None:
            if task.state is TaskState.STARTING:
                harness.start("t")
            if not (change is ExitKind.OK and not task_of(harness).debugging):
                harness.exit("t", change)
        harness.rounds()
    while task_of(harness).state in LEAVING:
        harness.exit("t", ExitKind.KILLED)
        harness.rounds()
    harness.until(harness.seconds + 61.0)
    task = task_of(harness)
    assert (task.state in (TaskState.STARTING, TaskState.RUNNING), task.debugging) == (True, True)


def test_texts_of_the_reasons_name_what_to_do() -> None:
    codes = (ReasonCode.DEBUG_ENDED, ReasonCode.MODE_CHANGED)
    assert all(render(Reason(code=code)) for code in codes)
    assert PolicySettings().debug_seconds_max == 8 * 3600.0
