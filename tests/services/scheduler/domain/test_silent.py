"""Runs whose programs never ask whether to leave, and goals that end a run at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import (
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    PreemptionRequested,
    PreemptMode,
    Priority,
    ReasonCode,
    RunListened,
    TaskState,
)
from libs.contracts.reasons import render
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import applied
from services.scheduler.domain.model.decisions import Kill, Plan, Preempt
from services.scheduler.domain.model.lifecycle import Trigger
from services.scheduler.domain.model.observations import Drop
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.slices.slice_round import slice_end_cost
from tests.kit.builders import (
    a_node,
    a_spec,
    a_task,
    listened_event,
    started_event,
    submitted_event,
)
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import Stage

SILENT, WHOLE = 5.0, 60.0


def a_stage(mode: PreemptMode = PreemptMode.SDK, *, listens: bool = False) -> Stage:
    """One node; its run has lasted ten seconds."""
    stage = Stage([a_node()])
    spec = a_spec(priority=Priority.LOW, mode=mode, ack_seconds=WHOLE)
    stage.submit(a_task("low", spec=spec))
    stage.rounds()
    stage.start("low", listens=listens)
    stage.rounds()
    stage.until(10.0)
    return stage


def preempted(stage: Stage) -> Stage:
    """A higher task wants its node."""
    stage.submit(a_task("high", priority=Priority.HIGH))
    stage.rounds()
    assert low(stage).state is TaskState.PREEMPTING
    return stage


def low(stage: Stage) -> Task:
    return stage.tasks["low"]


def killed_after(stage: Stage) -> float:
    """How long after the request the run is ended by force."""
    asked = stage.seconds
    while low(stage).state is TaskState.PREEMPTING:
        assert stage.due is not None, "nobody would ever end it"
        stage.until(max(stage.due, stage.seconds + 0.5))
    return stage.seconds - asked


@pytest.mark.parametrize(
    ("mode", "listens", "seconds", "code"),
    [
        (PreemptMode.SDK, False, SILENT, ReasonCode.NEVER_ASKED),
        (PreemptMode.UNSPECIFIED, False, SILENT, ReasonCode.NEVER_ASKED),
        (PreemptMode.SDK, True, WHOLE, ReasonCode.ACK_EXPIRED),
        (PreemptMode.SIGNAL, False, WHOLE, ReasonCode.ACK_EXPIRED),
    ],
)
def test_who_never_asked_is_not_waited_for(
    mode: PreemptMode, listens: bool, seconds: float, code: ReasonCode
) -> None:
    stage = preempted(a_stage(mode, listens=listens))
    assert killed_after(stage) == seconds
    assert low(stage).reason.code is code


@pytest.mark.parametrize("mode", [PreemptMode.SDK, PreemptMode.SIGNAL])
@pytest.mark.parametrize("listens", [False, True])
def test_the_request_says_when_the_run_really_ends(mode: PreemptMode, *, listens: bool) -> None:
    stage = a_stage(mode, listens=listens)
    stage.submit(a_task("high", priority=Priority.HIGH))
    (decision,) = [each for each in stage.plan().decisions if isinstance(each, Preempt)]
    request, _ = applied(low(stage), decision, stage.now).messages
    assert isinstance(request, PreemptionRequested)
    silent = mode is PreemptMode.SDK and not listens
    assert request.silent_deadline_at == (at(10 + SILENT) if silent else None)
    assert request.deadline_at == at(10 + WHOLE)
    # A stop of a run that was asked already says it again.
    after = replace(low(preempted(stage)), listens=listens)
    stop = GoalChanged(task_id="low", goal=Goal.STOP, revision=7, changed_at=at(12))
    change = observations.on_goal_changed(after, stop, at(12), stage.settings)
    assert not isinstance(change, Drop)
    again = [each for each in change.messages if isinstance(each, PreemptionRequested)]
    assert [each.silent_deadline_at for each in again] == [at(10 + SILENT) if silent else None]


def test_what_the_program_is_told_is_the_time_that_it_has_once_it_listens() -> None:
    stage = a_stage()
    stage.submit(a_task("high", priority=Priority.HIGH))
    (decision,) = [each for each in stage.plan().decisions if isinstance(each, Preempt)]
    said = applied(low(stage), decision, stage.now).messages
    (request,) = [each for each in said if isinstance(each, PreemptionRequested)]
    assert request.deadline_at == at(10 + WHOLE)


def test_a_program_that_asks_within_the_short_time_has_the_whole_deadline() -> None:
    stage = preempted(a_stage())
    stage.until(10 + SILENT - 1)
    stage.listen("low")
    stage.until(10 + WHOLE - 1)
    assert low(stage).state is TaskState.PREEMPTING
    stage.until(10 + WHOLE)
    assert low(stage).reason.code is ReasonCode.ACK_EXPIRED


def test_a_row_from_before_is_waited_for_as_ever() -> None:
    """Its start was recorded by a scheduler that noted nothing about listening."""
    stage = a_stage()
    stage.put(replace(low(stage), listens=None))
    assert killed_after(preempted(stage)) == WHOLE


def test_a_report_counts_for_the_live_attempt_once() -> None:
    stage = a_stage()
    task = low(stage)
    other = RunListened(task_id="low", attempt=task.attempt + 1, asked_at=at(1))
    assert observations.on_run_listened(task, other) is Drop.OTHER_ATTEMPT
    stage.listen("low")
    again = listened_event(low(stage), now=9)
    assert observations.on_run_listened(low(stage), again) is Drop.DUPLICATE
    stage.exit("low", ExitKind.LOST)
    assert low(stage).listens is None
    assert observations.on_run_listened(low(stage), again) is Drop.OTHER_ATTEMPT


def test_a_report_that_overtakes_the_start_counts() -> None:
    stage = Stage([a_node()])
    stage.submit(a_task("low"))
    stage.rounds()
    stage.listen("low")
    stage.fact(observations.on_run_started(low(stage), started_event(low(stage)), stage.now))
    assert low(stage).listens is True


def test_the_check_knows_both_deadlines() -> None:
    for listens, fault in ((False, None), (True, Fault.NOT_EXPIRED)):
        stage = preempted(a_stage(listens=listens))
        stage.seconds = 10 + SILENT
        plan = killing_plan(stage)
        found = {each.fault for each in check(Snapshot.view(stage.index), plan)}
        assert (Fault.NOT_EXPIRED in found) is (fault is not None)


def killing_plan(stage: Stage) -> Plan:
    """A plan that ends the run by force now."""
    task, why = low(stage), reason(ReasonCode.ACK_EXPIRED)
    kill = Kill(task.id, task.attempt, why, Trigger.ACK_EXPIRED, "high")
    return replace(stage.plan(), decisions=(kill,))


def test_a_turn_costs_what_a_silent_run_would_lose() -> None:
    stage = a_stage()
    stage.until(100.0)
    pool, now = stage.index.pools["default"], stage.now.timestamp()
    before = slice_end_cost(pool, low(stage), now)
    stage.listen("low")
    assert before - slice_end_cost(pool, low(stage), now) == pytest.approx(
        100.0 * pool.size(low(stage))
    )


def test_a_restart_says_from_where() -> None:
    stage = preempted(a_stage())
    stage.until(10 + SILENT)
    task = low(stage)
    assert render(task.reason) == (
        "its program never asked whether to leave, and is ended by force after 5 s"
    )
    stage.exit("low", ExitKind.KILLED)
    assert low(stage).reason.code is ReasonCode.NEVER_ASKED
    assert render(low(stage).reason).endswith("; it starts from the beginning (no checkpoint)")
    stage.rounds()
    stage.start("high")
    stage.exit("high", ExitKind.OK)
    stage.rounds()
    stage.start("low")
    text = "attempt 2 runs, restarted from the beginning (no checkpoint)"
    assert render(low(stage).reason) == text
    stage.save("low")
    stage.exit("low", ExitKind.LOST)
    assert render(low(stage).reason).endswith(f"; it goes on from step {step(stage)}")
    stage.rounds()
    stage.start("low")
    assert render(low(stage).reason) == f"attempt 3 runs, resumed from step {step(stage)}"


def step(stage: Stage) -> int:
    saved = low(stage).checkpoint
    assert saved is not None
    return saved.step


def test_where_a_program_keeps_what_it_saves_at_a_signal_is_not_known() -> None:
    stage = a_stage(PreemptMode.SIGNAL)
    stage.exit("low", ExitKind.LOST)
    stage.rounds()
    stage.start("low")
    assert render(low(stage).reason) == "attempt 2 runs"


@pytest.mark.parametrize(
    ("goal", "state"), [(Goal.STOP, TaskState.STOPPED), (Goal.PAUSE, TaskState.PAUSED)]
)
@pytest.mark.parametrize("listens", [True, False])
def test_a_goal_with_now_ends_the_run_at_once(goal: Goal, state: TaskState, listens: bool) -> None:
    stage = a_stage(listens=listens)
    stage.want("low", goal, now=True)
    (decision,) = stage.plan().decisions
    assert isinstance(decision, Kill)
    said = applied(low(stage), decision, stage.now).messages
    assert any(isinstance(each, KillRequested) for each in said)
    stage.rounds()
    stage.exit("low", ExitKind.KILLED)
    ended = stage.tasks.get("low")
    assert (ended.state if ended else TaskState.STOPPED) is state


@pytest.mark.parametrize("listens", [True, False])
def test_a_stop_that_is_under_way_becomes_an_immediate_one(listens: bool) -> None:
    stage = a_stage(listens=listens)
    stage.want("low", Goal.STOP)
    stage.rounds()
    assert low(stage).state is TaskState.PREEMPTING
    stage.until(11.0)
    stage.want("low", Goal.STOP, now=True)
    stage.rounds()
    assert low(stage).state is TaskState.KILLING
    assert low(stage).reason.code is ReasonCode.GOAL_STOP


def test_a_resumed_task_is_asked_again() -> None:
    stage = a_stage(listens=True)
    stage.want("low", Goal.PAUSE, now=True)
    stage.rounds()
    stage.exit("low", ExitKind.KILLED)
    stage.want("low", Goal.RUN)
    stage.rounds()
    stage.start("low")
    assert killed_after(preempted(stage)) == WHOLE


def test_a_goal_with_now_may_come_before_its_task() -> None:
    stage = Stage([a_node()])
    task = a_task("low")
    early = observations.EarlyFacts(task.id)
    event = GoalChanged(task_id="low", goal=Goal.PAUSE, revision=2, now=True, changed_at=at(0))
    change = observations.on_submitted(
        submitted_event(task), observations.early_goal(early, event), stage.now
    )
    assert change.task.ends_now
