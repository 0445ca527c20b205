from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from libs.contracts import reasons
from libs.contracts.messages import (
    CheckpointSaved,
    Continuation,
    ExitKind,
    Goal,
    GoalChanged,
    Priority,
    PriorityChanged,
    ReasonCode,
    Role,
    StartsAfter,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.reasons import render
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.observations import ChangeOrDrop, Drop
from services.scheduler.domain.model.rows import EarlyFacts, Task
from services.scheduler.domain.model.values import reason
from tests.kit.builders import (
    a_checkpoint,
    a_spec,
    a_task,
    exited_event,
    preempting,
    running,
    started_event,
    starting,
    submitted_event,
)
from tests.kit.clock import at

ALL = tuple(range(8))
ON = {"n0": ALL}
POLICY = PolicySettings()


def goal(value: Goal, revision: int, task_id: str = "t1") -> GoalChanged:
    return GoalChanged(task_id=task_id, goal=value, revision=revision, changed_at=at(0))


def level(value: Priority, revision: int, task_id: str = "t1") -> PriorityChanged:
    return PriorityChanged(task_id=task_id, priority=value, revision=revision, changed_at=at(0))


def after(outcome: ChangeOrDrop) -> Task:
    assert isinstance(outcome, Change), outcome
    return outcome.task


def published(outcome: ChangeOrDrop) -> TaskStateChanged:
    assert isinstance(outcome, Change)
    (message,) = outcome.messages
    assert isinstance(message, TaskStateChanged)
    return message


def ended(task: Task, kind: ExitKind, *, now: float = 100.0) -> Task:
    return after(
        observations.on_run_exited(task, exited_event(task, kind, now=now), at(now), POLICY)
    )


def test_a_submission_is_queued_and_published() -> None:
    task = a_task(priority=Priority.LOW)
    outcome = observations.on_submitted(submitted_event(task), None, at(3))
    assert outcome.task.state is TaskState.QUEUED
    message = published(outcome)
    assert (message.state, message.version, message.observed_revision) == (TaskState.QUEUED, 1, 1)
    assert (message.owner, message.team, message.group) == ("ann", "vision", "default")


def test_facts_that_came_before_their_task_are_not_lost() -> None:
    early = EarlyFacts(a_task().id)
    for event in (goal(Goal.STOP, 4), goal(Goal.PAUSE, 2)):
        early = observations.early_goal(early, event)
    early = observations.early_priority(early, level(Priority.HIGH, 3))
    early = observations.early_priority(early, level(Priority.LOW, 3))
    task = observations.on_submitted(submitted_event(a_task()), early, at(3)).task
    assert (task.goal, task.priority, task.revision) == (Goal.STOP, Priority.HIGH, 4)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_goals_and_levels_end_the_same_in_any_order(order: tuple[int, ...]) -> None:
    events = [
        goal(Goal.PAUSE, 2),
        level(Priority.HIGH, 3),
        goal(Goal.RUN, 4),
        level(Priority.LOW, 5),
    ]
    task = a_task()
    for index in order:
        event = events[index]
        outcome = (
            observations.on_goal_changed(task, event, at(1), POLICY)
            if isinstance(event, GoalChanged)
            else observations.on_priority_changed(task, event, at(1))
        )
        task = outcome.task if isinstance(outcome, Change) else task
    assert (task.goal, task.priority, task.revision) == (Goal.RUN, Priority.LOW, 5)


def test_an_old_revision_is_dropped_and_a_new_one_published() -> None:
    assert (
        observations.on_goal_changed(a_task(), goal(Goal.STOP, 1), at(1), POLICY)
        is Drop.OLD_REVISION
    )
    assert (
        published(
            observations.on_goal_changed(a_task(), goal(Goal.STOP, 2), at(1), POLICY)
        ).observed_revision
        == 2
    )


def test_a_priority_is_noted_and_the_level_of_a_live_run_is_left_to_the_next_decision() -> None:
    """The next decision finds out whether the quota of the new level admits the run."""
    run = running(a_task(), ON)
    for value in (Priority.HIGH, Priority.LOW, Priority.AUTO):
        noted = after(observations.on_priority_changed(run, level(value, 2), at(1)))
        assert (noted.level, noted.priority) == (Priority.NORMAL, value)


def test_a_start_is_noted_once_and_only_of_the_live_attempt() -> None:
    task = replace(starting(a_task(), ON), start_attempts=3)
    event = started_event(task, now=7)
    run = after(observations.on_run_started(task, event, at(8)))
    assert (run.state, run.run_started_at, run.first_started_at) == (
        TaskState.RUNNING,
        at(7),
        at(7),
    )
    assert run.start_attempts == 0
    assert observations.on_run_started(run, event, at(9)) is Drop.DUPLICATE
    old = event.model_copy(update={"attempt": 0})
    assert observations.on_run_started(task, old, at(9)) is Drop.OTHER_ATTEMPT
    assert observations.on_run_started(a_task(), event, at(9)) is Drop.OTHER_ATTEMPT


@pytest.mark.parametrize("off_seconds", [-9 * 3600, 9 * 3600])
def test_a_run_lasts_as_long_as_our_own_clock_measures_if_the_launchers_is_hours_off(
    off_seconds: int,
) -> None:
    """With that clock behind, a run that has just begun would seem to have had its turn."""
    task = starting(a_task(), ON)
    run = after(observations.on_run_started(task, started_event(task, now=7 + off_seconds), at(8)))
    assert run.run_started_at == at(8)
    event = exited_event(run, ExitKind.KILLED, now=27 + off_seconds)
    assert after(observations.on_run_exited(run, event, at(28), POLICY)).run_seconds == 20


def test_a_start_that_comes_after_the_order_to_kill_counts_for_the_run_time() -> None:
    task = replace(starting(a_task(), ON), state=TaskState.KILLING)
    outcome = observations.on_run_started(task, started_event(task, now=7), at(8))
    assert isinstance(outcome, Change)
    assert outcome.messages == ()
    assert outcome.task.state is TaskState.KILLING
    assert ended(outcome.task, ExitKind.KILLED, now=27).run_seconds == 20


def test_the_highest_checkpoint_number_wins_in_any_order() -> None:
    for order in permutations((1, 2, 3)):
        task = running(a_task(), ON)
        for no in order:
            event = CheckpointSaved(task_id="t1", attempt=1, checkpoint=a_checkpoint(no))
            outcome = observations.on_checkpoint_saved(task, event)
            task = outcome.task if isinstance(outcome, Change) else task
        assert task.checkpoint is not None
        assert task.checkpoint.no == 3


def test_a_checkpoint_may_go_back_in_steps() -> None:
    task = replace(running(a_task(), ON), checkpoint=a_checkpoint(1))
    back = a_checkpoint(2).model_copy(update={"step": 1})
    event = CheckpointSaved(task_id="t1", attempt=1, checkpoint=back)
    assert after(observations.on_checkpoint_saved(task, event)).checkpoint == back
    assert (
        observations.on_checkpoint_saved(replace(task, checkpoint=back), event)
        is Drop.OLD_CHECKPOINT
    )


def test_an_exit_brings_the_checkpoint_that_its_own_event_lost() -> None:
    task = preempting(a_task(), ON)
    event = exited_event(task, ExitKind.PREEMPTED, now=9, checkpoint=a_checkpoint(5))
    free = after(observations.on_run_exited(task, event, at(9), POLICY))
    assert free.checkpoint == a_checkpoint(5)
    assert free.state is TaskState.QUEUED


def test_an_exit_frees_everything_the_run_had() -> None:
    free = ended(preempting(a_task(), ON), ExitKind.PREEMPTED)
    assert (free.live_attempt, free.placements, free.attempt) == (None, (), 1)
    assert free.ack_deadline_at is free.start_deadline_at is free.run_started_at is None
    assert (free.preempted_for, free.end_reason, free.level) == ("", None, Priority.UNSPECIFIED)


def test_only_the_live_attempts_exit_counts_and_only_once() -> None:
    task = running(replace(a_task(), attempt=1), ON)
    late = exited_event(task, attempt=1)
    assert observations.on_run_exited(task, late, at(9), POLICY) is Drop.OTHER_ATTEMPT
    free = ended(task, ExitKind.LOST)
    again = exited_event(task, ExitKind.LOST)
    assert observations.on_run_exited(free, again, at(9), POLICY) is Drop.OTHER_ATTEMPT


def test_an_exit_before_its_start_is_an_exit() -> None:
    task = starting(a_task(), ON)
    outcome = observations.on_run_exited(task, exited_event(task, now=5), at(6), POLICY)
    message = published(outcome)
    assert message.state is TaskState.SUCCEEDED
    assert message.finished_at == at(5)
    assert (message.held_gpus, message.held_nodes) == (0, 0)


def test_failures_use_retries_and_wait_longer_each_time() -> None:
    task, waits = a_task(spec=a_spec(retries=8)), []
    for _ in range(8):
        task = ended(running(task, ON), ExitKind.FAILED)
        assert task.state is TaskState.QUEUED
        assert task.not_before_at is not None
        waits.append((task.not_before_at - at(100)).total_seconds())
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    last = ended(running(task, ON), ExitKind.FAILED)
    assert last.state is TaskState.FAILED
    assert last.reason.code is ReasonCode.RETRIES_USED_UP


def test_preempted_lost_and_killed_runs_use_no_retry_and_do_not_wait() -> None:
    for kind in (ExitKind.PREEMPTED, ExitKind.LOST, ExitKind.KILLED):
        task = ended(running(a_task(spec=a_spec(retries=1)), ON), kind)
        assert (task.state, task.retries_used, task.not_before_at) == (TaskState.QUEUED, 0, None)


def test_a_task_that_ran_for_its_maximum_has_failed_with_that_reason() -> None:
    why = reason(ReasonCode.MAX_RUN_TIME, seconds=5)
    task = ended(replace(preempting(a_task(), ON), end_reason=why), ExitKind.PREEMPTED)
    assert (task.state, task.reason) == (TaskState.FAILED, why)


def test_the_run_time_of_all_attempts_is_summed() -> None:
    task = a_task()
    for _ in range(3):
        task = ended(running(task, ON, since=70), ExitKind.PREEMPTED, now=100)
    assert task.run_seconds == 90


def test_starts_that_are_lost_are_spaced_and_bounded() -> None:
    task, waits = a_task(), list[float]()
    policy = PolicySettings(start_attempts_max=3, retry_delay_seconds=10)
    for number in (1, 2, 3):
        task = replace(starting(a_task(), ON), start_attempts=task.start_attempts)
        event = exited_event(task, ExitKind.LOST, now=100)
        task = after(observations.on_run_exited(task, event, at(100), policy))
        assert task.start_attempts == number
        assert task.not_before_at is not None
        waits.append((task.not_before_at - at(100)).total_seconds())
    assert waits == [10, 20, 40]
    assert task.state is TaskState.FAILED
    assert task.reason.code is ReasonCode.START_ATTEMPTS_USED_UP
    assert task.retries_used == 0


def test_a_start_that_came_about_clears_the_count() -> None:
    task = replace(starting(a_task(), ON), start_attempts=2)
    task = after(observations.on_run_started(task, started_event(task, now=5), at(5)))
    lost = ended(task, ExitKind.LOST)
    assert (lost.start_attempts, lost.not_before_at) == (0, None)


def test_later_roles_that_do_not_start_count_as_failed_starts() -> None:
    roles = Role(name="ps", replicas=1), Role(name="it", starts_after=(StartsAfter(role="ps"),))
    task = replace(a_task(), spec=a_task().spec.model_copy(update={"roles": roles}))
    policy = PolicySettings(start_attempts_max=3, retry_delay_seconds=10)
    waits, first = list[float](), task
    for number in (1, 2, 3):
        again = replace(starting(first, ON), start_attempts=task.start_attempts)
        run = after(observations.on_run_started(again, started_event(again, now=5), at(5)))
        event = exited_event(run, ExitKind.LOST, now=100)
        failed = event.exit.model_copy(update={"start_failed": True})
        event = event.model_copy(update={"exit": failed})
        task = after(observations.on_run_exited(run, event, at(100), policy))
        assert (task.start_attempts, bool(task.avoids)) == (number, True)
        assert task.not_before_at is not None
        waits.append((task.not_before_at - at(100)).total_seconds())
    assert waits == [10, 20, 40]
    assert task.state is TaskState.FAILED
    # A run that ends in any other way clears the count.
    again = replace(starting(first, ON), start_attempts=2, avoids=("n1",))
    run = after(observations.on_run_started(again, started_event(again, now=5), at(5)))
    over = ended(run, ExitKind.PREEMPTED)
    assert (over.start_attempts, over.avoids) == (0, ())


def test_work_that_is_lost_again_and_again_is_counted_until_a_checkpoint() -> None:
    task = a_task()
    for lost in (1, 2, 3):
        task = ended(running(task, ON), ExitKind.LOST)
        assert task.attempts_without_progress == lost
    # An attempt that never started had nothing to lose.
    never = starting(task, ON)
    event = exited_event(never, ExitKind.KILLED).model_copy(
        update={"exit": exited_event(never, ExitKind.KILLED).exit.model_copy(update={"ranks": ()})}
    )
    task = after(observations.on_run_exited(never, event, at(100), POLICY))
    assert task.attempts_without_progress == 3
    run = replace(running(task, ON), checkpoint=a_checkpoint(1))
    assert ended(run, ExitKind.LOST).attempts_without_progress == 0
    # The same checkpoint again is no progress.
    again = running(ended(run, ExitKind.LOST), ON)
    outcome = observations.on_run_exited(again, exited_event(again, ExitKind.LOST), at(100), POLICY)
    assert published(outcome).attempts_without_progress == 1


def yielded(task: Task, *, started: float, now: float) -> Task:
    task = replace(running(task, ON), run_started_at=at(started), assigned_at=at(started))
    event = exited_event(task, ExitKind.PREEMPTED, now=now)
    end = event.exit.model_copy(update={"yielded": True, "detail": "handed over: no data"})
    event = event.model_copy(update={"exit": end})
    return after(observations.on_run_exited(task, event, at(now), POLICY))


def test_a_task_that_yielded_is_queued_without_a_retry_and_waits_a_moment() -> None:
    task = yielded(a_task(), started=0, now=100)
    assert (task.state, task.reason.code) == (TaskState.QUEUED, ReasonCode.YIELDED)
    assert (task.retries_used, task.placements, task.run_seconds) == (0, (), 100.0)
    assert task.not_before_at == at(100 + POLICY.yield_delay_seconds)
    assert task.submitted_at == a_task().submitted_at
    text = render(task.reason)
    assert text.startswith("attempt 1 handed over: no data; it starts from the beginning")
    assert "00:01:41" in text


def test_who_yields_soon_after_each_start_waits_longer_each_time_up_to_a_bound() -> None:
    task, now, waits = a_task(), 0.0, list[float]()
    for _ in range(9):
        task = yielded(task, started=now, now=now + 2)
        assert task.not_before_at is not None
        waits.append((task.not_before_at - at(now + 2)).total_seconds())
        now += 200
    assert waits[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert set(waits[5:]) == {POLICY.yield_delay_seconds_max}
    # A run that lasts ends the row.
    task = yielded(task, started=now, now=now + POLICY.yield_soon_seconds)
    assert task.not_before_at == at(now + POLICY.yield_soon_seconds + POLICY.yield_delay_seconds)


def test_a_task_that_goes_on_with_another_begins_at_its_last_checkpoint() -> None:
    saved = a_checkpoint(5).model_copy(update={"task_id": "before"})
    continues = Continuation(task_id="before", chain="before", checkpoint=saved)
    event = submitted_event(a_task())
    spec = event.spec.model_copy(update={"continues": continues})
    task = after(observations.on_submitted(event.model_copy(update={"spec": spec}), None, at(3)))
    assert task.checkpoint == saved
    # Leaving without a newer one is no progress.
    run = running(replace(task, began_from_checkpoint=saved.no), ON)
    assert ended(run, ExitKind.LOST).attempts_without_progress == 1


@pytest.mark.parametrize(
    ("by", "text"),
    [("ann", "its owner paused it"), ("", "its owner paused it"), ("ada", "ada paused it")],
)
def test_the_reason_of_a_pause_names_an_administrator(by: str, text: str) -> None:
    pause = goal(Goal.PAUSE, 2).model_copy(update={"changed_by": by})
    task = after(observations.on_goal_changed(running(a_task(), ON), pause, at(1), POLICY))
    assert reasons.render(task.goal_reason) == text
    paused = ended(task, ExitKind.KILLED)
    assert (paused.state, reasons.render(paused.reason)) == (TaskState.PAUSED, text)
    early = observations.early_goal(EarlyFacts(a_task().id), pause)
    late = observations.on_submitted(submitted_event(a_task()), early, at(3)).task
    assert reasons.render(late.goal_reason) == text
