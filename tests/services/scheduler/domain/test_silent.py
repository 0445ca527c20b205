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
from tests.services.scheduler.domain.domain_harness import DomainHarness

SILENT, WHOLE = 5.0, 60.0


def a_harness(mode: PreemptMode = PreemptMode.SDK, *, listens: bool = False) -> DomainHarness:
    """One node; its run has lasted ten seconds."""
    harness = DomainHarness([a_node()])
    spec = a_spec(priority=Priority.LOW, mode=mode, ack_seconds=WHOLE)
    harness.submit(a_task("low", spec=spec))
    harness.rounds()
    harness.start("low", listens=listens)
    harness.rounds()
    harness.until(10.0)
    return harness


def preempted(harness: DomainHarness) -> DomainHarness:
    """A higher task wants its node."""
    harness.submit(a_task("high", priority=Priority.HIGH))
    harness.rounds()
    assert low(harness).state is TaskState.PREEMPTING
    return harness


def low(harness: DomainHarness) -> Task:
    return harness.tasks["low"]


def killed_after(harness: DomainHarness) -> float:
    """How long after the request the run is ended by force."""
    asked = harness.seconds
    while low(harness).state is TaskState.PREEMPTING:
        assert harness.due is not None, "nobody would ever end it"
        harness.until(max(harness.due, harness.seconds + 0.5))
    return harness.seconds - asked


@pytest.mark.parametrize(
    ("mode", "listens", "seconds", "code"),
    [
        (PreemptMode.SDK, False, SILENT, ReasonCode.NEVER_ASKED),
        (PreemptMode.UNSPECIFIED, False, SILENT, ReasonCode.NEVER_ASKED),
        (PreemptMode.SDK, True, WHOLE, ReasonCode.ACK_EXPIRED),
        (PreemptMode.SIGNAL, False, WHOLE, ReasonCode.ACK_EXPIRED),
    ],
)
def test_a_run_that_never_polled_gets_only_the_short_time(
    mode: PreemptMode, listens: bool, seconds: float, code: ReasonCode
) -> None:
    harness = preempted(a_harness(mode, listens=listens))
    assert killed_after(harness) == seconds
    assert low(harness).reason.code is code


@pytest.mark.parametrize("mode", [PreemptMode.SDK, PreemptMode.SIGNAL])
@pytest.mark.parametrize("listens", [False, True])
def test_the_request_contains_when_the_run_really_ends(mode: PreemptMode, *, listens: bool) -> None:
    harness = a_harness(mode, listens=listens)
    harness.submit(a_task("high", priority=Priority.HIGH))
    (decision,) = [each for each in harness.plan().decisions if isinstance(each, Preempt)]
    request, _ = applied(low(harness), decision, harness.now).messages
    assert isinstance(request, PreemptionRequested)
    silent = mode is PreemptMode.SDK and not listens
    assert request.silent_deadline_at == (at(10 + SILENT) if silent else None)
    assert request.deadline_at == at(10 + WHOLE)
    # A stop of a run that is already asked to leave publishes the request again.
    after = replace(low(preempted(harness)), listens=listens)
    stop = GoalChanged(task_id="low", goal=Goal.STOP, revision=7, changed_at=at(12))
    change = observations.on_goal_changed(after, stop, at(12), harness.settings)
    assert not isinstance(change, Drop)
    again = [each for each in change.messages if isinstance(each, PreemptionRequested)]
    assert [each.silent_deadline_at for each in again] == [at(10 + SILENT) if silent else None]


def test_the_request_carries_the_deadline_that_holds_once_the_program_polls() -> None:
    harness = a_harness()
    harness.submit(a_task("high", priority=Priority.HIGH))
    (decision,) = [each for each in harness.plan().decisions if isinstance(each, Preempt)]
    messages = applied(low(harness), decision, harness.now).messages
    (request,) = [each for each in messages if isinstance(each, PreemptionRequested)]
    assert request.deadline_at == at(10 + WHOLE)


def test_a_program_that_polls_within_the_short_time_has_the_whole_deadline() -> None:
    harness = preempted(a_harness())
    harness.until(10 + SILENT - 1)
    harness.listen("low")
    harness.until(10 + WHOLE - 1)
    assert low(harness).state is TaskState.PREEMPTING
    harness.until(10 + WHOLE)
    assert low(harness).reason.code is ReasonCode.ACK_EXPIRED


def test_a_row_of_an_earlier_version_has_the_whole_deadline() -> None:
    """An earlier scheduler recorded its start without noting whether it listens."""
    harness = a_harness()
    harness.put(replace(low(harness), listens=None))
    assert killed_after(preempted(harness)) == WHOLE


def test_a_report_counts_for_the_live_attempt_once() -> None:
    harness = a_harness()
    task = low(harness)
    other = RunListened(task_id="low", attempt=task.attempt + 1, asked_at=at(1))
    assert observations.on_run_listened(task, other) is Drop.OTHER_ATTEMPT
    harness.listen("low")
    again = listened_event(low(harness), now=9)
    assert observations.on_run_listened(low(harness), again) is Drop.DUPLICATE
    harness.exit("low", ExitKind.LOST)
    assert low(harness).listens is None
    assert observations.on_run_listened(low(harness), again) is Drop.OTHER_ATTEMPT


def test_a_report_that_overtakes_the_start_counts() -> None:
    harness = DomainHarness([a_node()])
    harness.submit(a_task("low"))
    harness.rounds()
    harness.listen("low")
    harness.fact(
        observations.on_run_started(low(harness), started_event(low(harness)), harness.now)
    )
    assert low(harness).listens is True


def test_the_check_knows_both_deadlines() -> None:
    for listens, fault in ((False, None), (True, Fault.NOT_EXPIRED)):
        harness = preempted(a_harness(listens=listens))
        harness.seconds = 10 + SILENT
        plan = killing_plan(harness)
        found = {each.fault for each in check(Snapshot.view(harness.index), plan)}
        assert (Fault.NOT_EXPIRED in found) is (fault is not None)


def killing_plan(harness: DomainHarness) -> Plan:
    """A plan that ends the run by force now."""
    task, why = low(harness), reason(ReasonCode.ACK_EXPIRED)
    kill = Kill(task.id, task.attempt, why, Trigger.ACK_EXPIRED, "high")
    return replace(harness.plan(), decisions=(kill,))


def test_a_slice_end_costs_the_work_that_a_silent_run_would_lose() -> None:
    harness = a_harness()
    harness.until(100.0)
    pool, now = harness.index.pools["default"], harness.now.timestamp()
    before = slice_end_cost(pool, low(harness), now)
    harness.listen("low")
    assert before - slice_end_cost(pool, low(harness), now) == pytest.approx(
        100.0 * pool.size(low(harness))
    )


def test_a_restart_names_its_checkpoint_or_the_beginning() -> None:
    harness = preempted(a_harness())
    harness.until(10 + SILENT)
    task = low(harness)
    assert render(task.reason) == (
        "its program never asked whether to leave, and is ended by force after 5 s"
    )
    harness.exit("low", ExitKind.KILLED)
    assert low(harness).reason.code is ReasonCode.NEVER_ASKED
    assert render(low(harness).reason).endswith("; it starts from the beginning (no checkpoint)")
    harness.rounds()
    harness.start("high")
    harness.exit("high", ExitKind.OK)
    harness.rounds()
    harness.start("low")
    text = "attempt 2 runs, restarted from the beginning (no checkpoint)"
    assert render(low(harness).reason) == text
    harness.save("low")
    harness.exit("low", ExitKind.LOST)
    assert render(low(harness).reason).endswith(f"; it goes on from step {step(harness)}")
    harness.rounds()
    harness.start("low")
    assert render(low(harness).reason) == f"attempt 3 runs, resumed from step {step(harness)}"


def step(harness: DomainHarness) -> int:
    saved = low(harness).checkpoint
    assert saved is not None
    return saved.step


def test_a_restart_in_signal_mode_names_no_checkpoint() -> None:
    harness = a_harness(PreemptMode.SIGNAL)
    harness.exit("low", ExitKind.LOST)
    harness.rounds()
    harness.start("low")
    assert render(low(harness).reason) == "attempt 2 runs"


@pytest.mark.parametrize(
    ("goal", "state"), [(Goal.STOP, TaskState.STOPPED), (Goal.PAUSE, TaskState.PAUSED)]
)
@pytest.mark.parametrize("listens", [True, False])
def test_a_goal_with_now_ends_the_run_at_once(goal: Goal, state: TaskState, listens: bool) -> None:
    harness = a_harness(listens=listens)
    harness.want("low", goal, now=True)
    (decision,) = harness.plan().decisions
    assert isinstance(decision, Kill)
    messages = applied(low(harness), decision, harness.now).messages
    assert any(isinstance(each, KillRequested) for each in messages)
    harness.rounds()
    harness.exit("low", ExitKind.KILLED)
    ended = harness.tasks.get("low")
    assert (ended.state if ended else TaskState.STOPPED) is state


@pytest.mark.parametrize("listens", [True, False])
def test_a_stop_that_is_under_way_becomes_an_immediate_one(listens: bool) -> None:
    harness = a_harness(listens=listens)
    harness.want("low", Goal.STOP)
    harness.rounds()
    assert low(harness).state is TaskState.PREEMPTING
    harness.until(11.0)
    harness.want("low", Goal.STOP, now=True)
    harness.rounds()
    assert low(harness).state is TaskState.KILLING
    assert low(harness).reason.code is ReasonCode.GOAL_STOP


def test_a_resumed_task_is_asked_again() -> None:
    harness = a_harness(listens=True)
    harness.want("low", Goal.PAUSE, now=True)
    harness.rounds()
    harness.exit("low", ExitKind.KILLED)
    harness.want("low", Goal.RUN)
    harness.rounds()
    harness.start("low")
    assert killed_after(preempted(harness)) == WHOLE


def test_a_goal_with_now_may_come_before_its_task() -> None:
    harness = DomainHarness([a_node()])
    task = a_task("low")
    early = observations.EarlyFacts(task.id)
    event = GoalChanged(task_id="low", goal=Goal.PAUSE, revision=2, now=True, changed_at=at(0))
    change = observations.on_submitted(
        submitted_event(task), observations.early_goal(early, event), harness.now
    )
    assert change.task.ends_now
