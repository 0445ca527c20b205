"""Retries by class: each class of failures with a limit of its own has a counter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from libs.contracts.messages import (
    ClassRetries,
    ExitKind,
    FaultClass,
    Goal,
    ReasonCode,
    RetryPolicy,
    RunExit,
    RunExited,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.reasons import render
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change, state_changed
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.observations import Drop
from services.scheduler.domain.model.retry_limits import FIELDS, RetryCount, retry_count
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_spec, a_task, exited_event, preempting, running, starting
from tests.kit.clock import at

ON = {"n0": tuple(range(8))}
POLICY = PolicySettings(start_attempts_max=5)
C, K = FaultClass, ExitKind


def a_limited_task(**limits: int) -> Task:
    spec = a_spec().model_copy(update={"retry": RetryPolicy.model_validate(limits)})
    return a_task(spec=spec)


def exit_event(
    task: Task, fault_class: FaultClass, *, kind: ExitKind = K.FAILED, final: bool = False
) -> RunExited:
    event = exited_event(task, kind, now=100)
    facts = {"fault_class": fault_class, "final": final, "failed_rank": 0}
    return event.model_copy(update={"exit": event.exit.model_copy(update=facts)})


def failed(
    task: Task, fault_class: FaultClass, *, kind: ExitKind = K.FAILED, final: bool = False
) -> Task:
    event = exit_event(task, fault_class, kind=kind, final=final)
    outcome = observations.on_run_exited(task, event, at(100), POLICY)
    assert isinstance(outcome, Change)
    return outcome.task


def lost(task: Task) -> Task:
    return failed(task, C.PLATFORM, kind=K.LOST)


def test_every_class_has_its_field() -> None:
    classes = set(FaultClass) - {C.UNSPECIFIED}
    assert set(FIELDS) == classes
    assert set(FIELDS.values()) == set(ClassRetries.model_fields)
    assert set(RetryPolicy.model_fields) == {"max_retries", *FIELDS.values()}


def test_each_class_with_a_limit_has_a_counter_of_its_own() -> None:
    task = a_limited_task(max_retries=1, transient=2, user=0)
    for number in (1, 2):
        task = failed(running(task, ON), C.TRANSIENT)
        assert (task.state, task.retries_used) == (TaskState.QUEUED, 0)
        assert task.class_retries == ClassRetries(transient=number)
        assert f"retry {number} of 2 (transient) comes next" in render(task.reason)
    # The shared counter is untouched, and classes without a limit share it.
    task = failed(running(task, ON), C.UNKNOWN)
    assert (task.state, task.retries_used) == (TaskState.QUEUED, 1)
    assert "retry 1 of 1 comes next" in render(task.reason)
    for fault_class, left in ((C.UNKNOWN, "after 1"), (C.TRANSIENT, "after 2 (transient)")):
        last = failed(running(task, ON), fault_class)
        assert (last.state, last.reason.code) == (TaskState.FAILED, ReasonCode.RETRIES_USED_UP)
        assert render(last.reason).endswith(f"no retry is left {left}")
    never = failed(running(task, ON), C.USER)
    assert (never.state, never.reason.code) == (TaskState.FAILED, ReasonCode.RETRIES_USED_UP)
    assert render(never.reason).endswith("; no retry is allowed (user)")


def test_the_wait_grows_with_the_retries_of_the_class() -> None:
    task, waits = a_limited_task(max_retries=1, transient=3), list[float]()
    for fault_class in (C.TRANSIENT, C.TRANSIENT, C.UNKNOWN, C.TRANSIENT):
        task = failed(running(task, ON), fault_class)
        assert task.not_before_at is not None
        waits.append((task.not_before_at - at(100)).total_seconds())
    assert waits == [10, 20, 10, 40]


@pytest.mark.parametrize("retries", [0, 3])
def test_losses_are_not_counted_without_a_limit(retries: int) -> None:
    task = lost(running(a_limited_task(max_retries=retries, user=1), ON))
    assert (task.state, task.not_before_at) == (TaskState.QUEUED, None)
    assert (task.retries_used, task.class_retries) == (0, None)
    assert task.reason.code is ReasonCode.RUN_LOST
    assert "retry" not in render(task.reason)


def test_losses_are_counted_with_a_limit() -> None:
    task = lost(running(a_limited_task(platform=1), ON))
    assert (task.state, task.not_before_at) == (TaskState.QUEUED, None)
    assert task.class_retries == ClassRetries(platform=1)
    assert render(task.reason).endswith("; retry 1 of 1 (platform) comes next")
    task = lost(running(task, ON))
    assert (task.state, task.reason.code) == (TaskState.FAILED, ReasonCode.RETRIES_USED_UP)
    assert render(task.reason).endswith("no retry is left after 1 (platform)")


def test_a_lost_start_counts_as_a_start_and_as_a_loss() -> None:
    task = lost(starting(a_limited_task(platform=9), ON))
    assert (task.start_attempts, task.class_retries) == (1, ClassRetries(platform=1))
    assert task.not_before_at == at(110)


@pytest.mark.parametrize("kind", [K.PREEMPTED, K.KILLED, K.LOST, K.FAILED])
def test_the_end_of_a_run_that_was_asked_to_go_counts_nowhere(kind: ExitKind) -> None:
    task = a_limited_task(max_retries=0, user=0, transient=0, platform=0, unknown=0)
    task = failed(preempting(task, ON), C.TRANSIENT, kind=kind)
    assert (task.state, task.retries_used, task.class_retries) == (TaskState.QUEUED, 0, None)


def test_a_preemption_resets_no_counter() -> None:
    task = failed(running(a_limited_task(max_retries=3, transient=2), ON), C.TRANSIENT)
    task = failed(running(task, ON), C.USER)
    task = failed(preempting(task, ON), C.UNSPECIFIED, kind=K.PREEMPTED)
    assert (task.retries_used, task.class_retries) == (1, ClassRetries(transient=1))


def test_a_final_failure_ends_the_task_with_retries_left() -> None:
    for state in (running, preempting):
        task = failed(state(a_limited_task(max_retries=9, unknown=9), ON), C.UNKNOWN, final=True)
        assert (task.state, task.reason.code) == (TaskState.FAILED, ReasonCode.RESTART_NOT_ALLOWED)
        assert render(task.reason).endswith("; the restart rule of role worker allows no restart")


@pytest.mark.parametrize(
    ("goal", "final", "state"),
    [
        (Goal.RUN, False, TaskState.QUEUED),
        (Goal.PAUSE, False, TaskState.PAUSED),
        (Goal.STOP, False, TaskState.STOPPED),
        (Goal.RUN, True, TaskState.FAILED),
        (Goal.PAUSE, True, TaskState.FAILED),
        (Goal.STOP, True, TaskState.STOPPED),
    ],
)
def test_a_goal_that_comes_while_the_failure_is_on_its_way(
    goal: Goal, final: bool, state: TaskState
) -> None:
    task = replace(preempting(a_limited_task(max_retries=1), ON), goal=goal)
    assert failed(task, C.UNKNOWN, final=final).state is state


def test_a_doubled_exit_counts_once() -> None:
    task = running(a_limited_task(transient=5), ON)
    event = exit_event(task, C.TRANSIENT)
    once = failed(task, C.TRANSIENT)
    assert observations.on_run_exited(once, event, at(101), POLICY) is Drop.OTHER_ATTEMPT
    again = running(once, ON)
    assert observations.on_run_exited(again, event, at(101), POLICY) is Drop.OTHER_ATTEMPT
    assert again.class_retries == ClassRetries(transient=1)


def test_the_exit_of_an_older_launcher_counts_as_before() -> None:
    old = RunExit.model_validate(
        {
            "attempt": 1,
            "kind": "EXIT_KIND_FAILED",
            "ranks": [{"rank": 0, "code": 137}],
            "exited_at": at(100),
            "detail": "rank 0 ended with code 137",
        }
    )
    task = running(a_limited_task(max_retries=2, transient=0), ON)
    event = exited_event(task, K.FAILED, now=100).model_copy(update={"exit": old})
    outcome = observations.on_run_exited(task, event, at(100), POLICY)
    assert isinstance(outcome, Change)
    assert (outcome.task.state, outcome.task.retries_used) == (TaskState.QUEUED, 1)


def test_the_counters_are_published() -> None:
    task = failed(running(a_limited_task(max_retries=1, transient=2), ON), C.TRANSIENT)
    event = state_changed(failed(running(task, ON), C.USER), TaskState.RUNNING, at(1))
    assert (event.retries_used, event.class_retries) == (1, ClassRetries(transient=1))
    older = TaskStateChanged.model_validate(event.model_dump(exclude={"class_retries"}))
    assert older.class_retries is None


_LIMIT = st.none() | st.integers(0, 3)


@given(
    limits=st.fixed_dictionaries(dict.fromkeys(FIELDS.values(), _LIMIT)),
    shared=st.integers(0, 3),
    classes=st.lists(st.sampled_from(list(FaultClass)), max_size=30),
)
def test_no_class_is_retried_more_often_than_its_limit(
    limits: dict[str, int | None], shared: int, classes: Sequence[FaultClass]
) -> None:
    given_limits = {name: limit for name, limit in limits.items() if limit is not None}
    task, used = a_limited_task(max_retries=shared, **given_limits), dict[str, int]()
    for fault_class in classes:
        task = failed(running(task, ON), fault_class)
        field = FIELDS.get(fault_class, "")
        field = field if field in given_limits else ""
        if task.state is TaskState.FAILED:
            assert used.get(field, 0) == given_limits.get(field, shared)
            return
        used[field] = used.get(field, 0) + 1
        assert used[field] <= given_limits.get(field, shared)


def test_which_counter_an_end_counts_in() -> None:
    task = replace(a_limited_task(max_retries=4, transient=5), retries_used=1)
    ended = exit_event(running(task, ON), C.TRANSIENT).exit
    assert retry_count(task, ended) == RetryCount(0, 5, "transient")
    of_user = ended.model_copy(update={"fault_class": C.USER})
    assert retry_count(task, of_user) == RetryCount(1, 4)
    for kind in (K.OK, K.PREEMPTED, K.KILLED, K.LOST):
        assert retry_count(task, ended.model_copy(update={"kind": kind})) is None
    assert retry_count(task, None) is None
