"""A defect harms as little as possible: an exception while deciding, checking or committing, or
a row that cannot be loaded, stops a decision, a group or a task, and never the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import REGISTRY

from libs.contracts.messages import (
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    PreemptionRequested,
    Priority,
    PriorityChanged,
    Quota,
    QuotaChanged,
    ReasonCode,
    RunAssigned,
    TaskState,
    Unit,
)
from libs.contracts.reasons import render
from libs.store import unit
from libs.store.port import DatabaseFaultError, UnfitValueError
from services.scheduler import loop, store
from services.scheduler.domain import decide as decide_module
from services.scheduler.domain import urgent
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Plan
from services.scheduler.domain.slices import order_keys
from tests.kit.builders import a_node, a_spec, a_task, exited_event, started_event, submitted_event
from tests.kit.clock import at
from tests.services.scheduler.faults import (
    PoisonError,
    a_scheduler,
    loads_of,
    metric,
    of,
    raising,
    started,
)
from tests.services.scheduler.scheduler_harness import SchedulerHarness, inventory_of, node_changed


async def test_metrics_that_alerts_read_begin_at_zero() -> None:
    scheduler = await SchedulerHarness().start()
    node = a_node("n", group="never-held-up")
    spec = a_spec(group="never-held-up")
    await scheduler.handle(
        node_changed(node), inventory_of(node), submitted_event(a_task("t", spec=spec))
    )
    await scheduler.settle()
    for name, labels in (
        ("group_held_up_rounds_total", {"group": "never-held-up"}),
        *(("plans_refused_total", {"why": why}) for why in ("violation", "error", "conflict")),
    ):
        assert REGISTRY.get_sample_value(f"shiftwork_scheduler_{name}", labels) is not None, name


# Deciding.


def share_fails_for(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = decide_module.allocate
    failing = raising(honest, lambda _round, pool, *_: pool.group == group)
    monkeypatch.setattr(decide_module, "allocate", failing)


async def test_an_exception_while_a_group_is_decided_stops_that_group_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = await a_scheduler(refusals_max=2)
    await scheduler.handle(submitted_event(of("a", "low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    await scheduler.handle(submitted_event(of("a", "high", priority=Priority.HIGH, submitted=1)))
    await scheduler.settle()
    await scheduler.published()
    share_fails_for("a", monkeypatch)
    before = metric("group_held_up_rounds_total", group="a")
    await scheduler.handle(submitted_event(of("a", "a2", gpus=1)), submitted_event(of("b", "b1")))
    await scheduler.settle()
    assert await started(scheduler) == ["b1"]
    assert "PoisonError: poison" in capsys.readouterr().out
    # The deadline of the victim and requests of an owner do not wait.
    scheduler.clock.move_to(60)
    await scheduler.handle(
        GoalChanged(task_id="a2", goal=Goal.PAUSE, revision=2, changed_at=at(60))
    )
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, KillRequested)] == ["low"]
    assert (await scheduler.task("a2")).state is TaskState.PAUSED
    assert metric("group_held_up_rounds_total", group="a") == before + 1
    why = (await scheduler.explained("high")).reason
    assert why.code is ReasonCode.PLAN_REFUSED
    assert "RAISED" in render(why)
    monkeypatch.undo()
    await scheduler.handle(exited_event(await scheduler.task("low"), ExitKind.KILLED))
    scheduler.clock.move_to(120)
    await scheduler.settle()
    assert await started(scheduler) == ["high"]
    assert "decisions of a group pass again" in capsys.readouterr().out


async def test_an_exception_about_one_urgent_task_stops_that_task_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(
        submitted_event(of("a", "a1", gpus=1)), submitted_event(of("a", "a2", gpus=1))
    )
    await scheduler.settle()
    for each in ("a1", "a2"):
        await scheduler.handle(started_event(await scheduler.task(each)))
    await scheduler.published()
    failing = raising(urgent.request_release, lambda _round, task, *_: task.id == "a1")
    monkeypatch.setattr(urgent, "request_release", failing)
    for each in ("a1", "a2"):
        await scheduler.handle(
            GoalChanged(task_id=each, goal=Goal.STOP, revision=2, changed_at=at(1))
        )
    await scheduler.handle(submitted_event(of("a", "a3", gpus=1)))
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, PreemptionRequested)] == ["a2"]
    assert [each.task_id for each in published if isinstance(each, RunAssigned)] == ["a3"]
    monkeypatch.undo()
    scheduler.clock.move_to(2)
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, PreemptionRequested)] == ["a1"]


async def test_an_exception_that_concerns_no_group_leaves_deadlines_and_goals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler()
    honest = order_keys.next_sample
    monkeypatch.setattr(order_keys, "next_sample", raising(honest, lambda *_: True))
    await scheduler.handle(submitted_event(of("a", "a1")), submitted_event(of("b", "b1")))
    await scheduler.handle(GoalChanged(task_id="b1", goal=Goal.PAUSE, revision=2, changed_at=at(0)))
    await scheduler.settle()
    assert await started(scheduler) == []
    assert (await scheduler.task("b1")).state is TaskState.PAUSED
    monkeypatch.undo()
    scheduler.clock.move_to(1)
    await scheduler.settle()
    assert await started(scheduler) == ["a1"]


async def test_a_round_that_fails_as_a_whole_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(of("a", "a1")))
    monkeypatch.setattr(loop.Snapshot, "view", raising(Snapshot.view, lambda *_: True))
    before = metric("plans_refused_total", why="error")
    assert await scheduler.step() == 1.0
    # Wake-ups do not make the scheduler load and decide over and over.
    assert await scheduler.step() == 1.0
    assert metric("plans_refused_total", why="error") <= before + 1
    monkeypatch.undo()
    for second in range(1, 9):
        scheduler.clock.move_to(second)
        await scheduler.settle()
    assert (await scheduler.task("a1")).state is TaskState.STARTING


# Checking.


def check_fails(monkeypatch: pytest.MonkeyPatch, poisonous: Callable[[Plan], bool]) -> None:
    honest = loop.check

    def check(snapshot: Snapshot, plan: Plan) -> list[Any]:
        if poisonous(plan):
            raise PoisonError("poison")
        return honest(snapshot, plan)

    monkeypatch.setattr(loop, "check", check)


async def test_an_exception_while_a_plan_is_checked_stops_its_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler(refusals_max=1)
    check_fails(monkeypatch, lambda plan: any(each.task_id == "a1" for each in plan.decisions))
    await scheduler.handle(*(submitted_event(of(each, f"{each}1")) for each in "abc"))
    await scheduler.settle()
    assert await started(scheduler) == ["b1", "c1"]
    assert (await scheduler.explained("a1")).reason.code is ReasonCode.PLAN_REFUSED
    monkeypatch.undo()
    scheduler.clock.move_to(1)
    await scheduler.settle()
    assert await started(scheduler) == ["a1"]


async def test_an_exception_while_an_urgent_decision_is_checked_stops_that_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(*(submitted_event(of("a", each)) for each in ("x", "y")))
    check_fails(monkeypatch, lambda plan: any(each.task_id == "x" for each in plan.decisions))
    for each in ("x", "y"):
        await scheduler.handle(
            GoalChanged(task_id=each, goal=Goal.STOP, revision=2, changed_at=at(0))
        )
    await scheduler.settle()
    assert set(await scheduler.tasks()) == {"x"}
    monkeypatch.undo()
    scheduler.clock.move_to(1)
    await scheduler.settle()
    assert await scheduler.tasks() == {}


# Committing.


async def test_a_decision_that_cannot_be_carried_out_stops_its_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler()
    failing = raising(store.applied, lambda task, *_: task.id == "a1")
    monkeypatch.setattr(store, "applied", failing)
    await scheduler.handle(*(submitted_event(of(each, f"{each}1")) for each in "abc"))
    await scheduler.settle()
    assert await started(scheduler) == ["b1", "c1"]
    monkeypatch.undo()
    scheduler.clock.move_to(1)
    await scheduler.settle()
    assert await started(scheduler) == ["a1"]


async def test_a_value_that_no_row_can_hold_stops_its_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database reports the whole transaction, not the row."""
    scheduler = await a_scheduler()
    honest = store.commit

    async def commit(tx: Any, plan: Plan, *, version: int) -> None:
        await honest(tx, plan, version=version)
        if any(each.task_id == "a1" for each in plan.decisions):
            raise UnfitValueError("NUL in a text")

    monkeypatch.setattr(store, "commit", commit)
    await scheduler.handle(*(submitted_event(of(each, f"{each}1")) for each in "abc"))
    for _ in range(6):
        await scheduler.step()
    assert await started(scheduler) == ["b1", "c1"]
    monkeypatch.undo()
    scheduler.clock.move_to(2)
    await scheduler.settle()
    assert await started(scheduler) == ["a1"]


@pytest.mark.parametrize("way", ["decision", "commit", "database"])
async def test_a_group_whose_commits_fail_is_tried_less_and_less_often_and_reports_it(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """This includes database errors that name no row."""
    scheduler = await a_scheduler(refusals_max=2)
    honest = store.commit

    async def commit(tx: Any, plan: Plan, *, version: int) -> None:
        await honest(tx, plan, version=version)
        if any(each.task_id == "a1" for each in plan.decisions):
            raise UnfitValueError("NUL in a text") if way == "commit" else DatabaseFaultError("no")

    if way == "decision":
        failing = raising(store.applied, lambda task, *_: task.id == "a1")
        monkeypatch.setattr(store, "applied", failing)
    else:
        monkeypatch.setattr(store, "commit", commit)

    async def steps() -> None:
        for _ in range(6):
            # Wait for a server that is down, as the runner does.
            with suppress(DatabaseFaultError):
                await scheduler.step()

    await scheduler.handle(*(submitted_event(of(each, f"{each}1")) for each in "abc"))
    await steps()
    assert await started(scheduler) == ["b1", "c1"]
    assert (await scheduler.explained("a1")).reason.code is not ReasonCode.PLAN_REFUSED
    scheduler.clock.move_to(1)
    await steps()
    assert (await scheduler.explained("a1")).reason.code is ReasonCode.PLAN_REFUSED
    # The second time it waits for two ticks.
    monkeypatch.undo()
    scheduler.clock.move_to(2)
    await steps()
    assert await started(scheduler) == []
    scheduler.clock.move_to(3)
    await steps()
    assert await started(scheduler) == ["a1"]
    assert (await scheduler.explained("a1")).reason.code is not ReasonCode.PLAN_REFUSED


async def test_a_group_that_the_tables_refuse_again_costs_no_other_group_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When its back-off is over it is tried apart from the others: one refusal and one load."""
    scheduler = await a_scheduler()
    honest = store.commit

    async def commit(tx: Any, plan: Plan, *, version: int) -> None:
        await honest(tx, plan, version=version)
        if any(each.task_id == "b1" for each in plan.decisions):
            raise UnfitValueError("NUL in a text")

    monkeypatch.setattr(store, "commit", commit)
    await scheduler.handle(submitted_event(of("b", "b1")))
    for _ in range(6):
        await scheduler.step()
    loads = loads_of(monkeypatch)
    refused = metric("plans_refused_total", why="conflict")
    for turn, second in enumerate((1, 3, 7)):
        scheduler.clock.move_to(second)
        await scheduler.handle(
            *(submitted_event(of(each, f"{each}{turn}", gpus=1)) for each in "ac")
        )
        await scheduler.step()
        assert await started(scheduler) == [f"a{turn}"], "what was decided before it"
        for _ in range(6):
            await scheduler.step()
        assert await started(scheduler) == [f"c{turn}"]
        assert metric("plans_refused_total", why="conflict") == refused + turn + 1
        assert len(loads) == turn + 1
    monkeypatch.undo()
    scheduler.clock.move_to(15)
    await scheduler.settle()
    assert await started(scheduler) == ["b1"]


async def a_harness_in_which_quota_moves() -> SchedulerHarness:
    """A run of group a is about to sink from HIGH to LOW, and another task of it to start; by that
    a task of group b may start at HIGH, because one limit counts both."""
    scheduler = await a_scheduler()
    await scheduler.handle(node_changed(a_node("more", group="a")))
    limit = QuotaChanged(
        quota=Quota(priority=Priority.HIGH, unit=Unit.GPUS, limit=8), version=1, changed_at=at(0)
    )
    await scheduler.handle(limit, submitted_event(of("a", "runs", priority=Priority.HIGH)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("runs")))
    await scheduler.settle()
    lower = PriorityChanged(task_id="runs", priority=Priority.LOW, revision=2, changed_at=at(1))
    await scheduler.handle(lower, submitted_event(of("a", "poison")))
    await scheduler.handle(submitted_event(of("b", "taker", priority=Priority.HIGH)))
    return scheduler


async def at_high(scheduler: SchedulerHarness) -> list[str]:
    """Runs that the limit of HIGH counts."""
    tasks = await scheduler.tasks()
    return [name for name, task in tasks.items() if task.holds and task.level is Priority.HIGH]


async def test_what_a_failed_decision_would_give_back_of_a_quota_is_not_taken_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_harness_in_which_quota_moves()
    failing = raising(store.applied, lambda task, *_: task.id == "poison")
    monkeypatch.setattr(store, "applied", failing)
    before = metric("plan_violations_total", fault="quota")
    await scheduler.settle()
    assert await at_high(scheduler) == ["runs"]
    assert metric("plan_violations_total", fault="quota") == before
    monkeypatch.undo()
    scheduler.clock.move_to(2)
    await scheduler.settle()
    assert await at_high(scheduler) == ["taker"]


async def test_what_a_refused_commit_would_give_back_of_a_quota_is_not_taken_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables refuse the part of the group that gives back."""
    scheduler = await a_harness_in_which_quota_moves()
    commit = store.commit

    async def refused(tx: Any, plan: Plan, *, version: int) -> None:
        await commit(tx, plan, version=version)
        if any(each.task_id == "poison" for each in plan.decisions):
            raise UnfitValueError("NUL in a text")

    monkeypatch.setattr(store, "commit", refused)
    for _ in range(6):
        await scheduler.step()
        assert await at_high(scheduler) == ["runs"]
    monkeypatch.undo()
    scheduler.clock.move_to(9)
    for _ in range(3):
        await scheduler.settle()
    assert await at_high(scheduler) == ["taker"]
    assert (await scheduler.task("poison")).state is TaskState.STARTING


async def test_an_assignment_that_is_too_large_puts_off_its_task_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler(too_large_retry_seconds=300)
    spec = a_spec(group="a", priority=Priority.HIGH)
    big = spec.roles[0].model_copy(update={"env": {"LONG": "x" * 30_000}})
    monkeypatch.setattr(unit, "EVENT_BYTES_MAX", 20_000)
    large = a_task("large", spec=spec.model_copy(update={"roles": (big,)}))
    await scheduler.handle(
        submitted_event(large),
        submitted_event(of("a", "a2", submitted=1)),
        submitted_event(of("b", "b1")),
    )
    for _ in range(2):
        await scheduler.settle()
    assert sorted(await started(scheduler)) == ["a2", "b1"], "its group goes on as well"
    task = await scheduler.task("large")
    assert task.state is TaskState.QUEUED
    assert task.not_before_at == at(300)
    assert task.reason.code is ReasonCode.EVENT_TOO_LARGE
    reply = await scheduler.explained("large")
    assert reply.reason.code is ReasonCode.EVENT_TOO_LARGE
    assert "30" in render(reply.reason)
    assert reply.forecast is not None
    assert reply.forecast.unknown
    # It stays so while it waits, and through a new leader's term.
    scheduler.clock.move_to(10)
    await scheduler.restart()
    await scheduler.settle()
    assert (await scheduler.task("large")).reason.code is ReasonCode.EVENT_TOO_LARGE
    # Free nodes alone do not start it; when the time has come it is tried, and put off again.
    await scheduler.handle(started_event(await scheduler.task("a2")))
    await scheduler.handle(exited_event(await scheduler.task("a2"), ExitKind.OK))
    await scheduler.settle()
    assert (await scheduler.task("large")).not_before_at == at(300)
    scheduler.clock.move_to(300)
    await scheduler.settle()
    assert (await scheduler.task("large")).not_before_at == at(600)
    monkeypatch.undo()
    scheduler.clock.move_to(600)
    await scheduler.settle()
    assert (await scheduler.task("large")).state is TaskState.STARTING


# Backing off.


async def test_a_refused_group_is_tried_less_and_less_often_and_urgent_decisions_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler(refusal_backoff_seconds_max=8.0)
    tried: list[float] = []
    honest = decide_module.allocate

    def allocate(round_: Any, pool: Pool, *more: Any) -> None:
        if pool.group == "a":
            tried.append((round_.now - at(0)).total_seconds())
            raise PoisonError("poison")
        honest(round_, pool, *more)

    monkeypatch.setattr(decide_module, "allocate", allocate)
    await scheduler.handle(submitted_event(of("a", "a1")), submitted_event(of("a", "a2")))
    for tenth in range(400):
        scheduler.clock.move_to(tenth / 10)
        await scheduler.step()
    assert tried == [0, 1, 3, 7, 15, 23, 31, 39]
    goal = GoalChanged(task_id="a2", goal=Goal.PAUSE, revision=2, changed_at=at(40))
    await scheduler.handle(goal)
    await scheduler.step()
    assert (await scheduler.task("a2")).state is TaskState.PAUSED
    # A clock that is set back does not make the wait longer.
    scheduler.clock.move_to(-3600)
    await scheduler.step()
    assert tried[-1] == -3600
