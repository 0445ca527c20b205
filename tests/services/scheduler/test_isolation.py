"""What is wrong with one group's decisions stops nothing else: not the other groups, not deadlines,
goals or drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from libs.contracts.messages import (
    Goal,
    GoalChanged,
    KillRequested,
    PreemptionRequested,
    Priority,
    ReasonCode,
    RunAssigned,
    TaskState,
    Unit,
)
from libs.contracts.reasons import render
from services.scheduler import loop
from services.scheduler.domain.check.isolate import CheckedPlan, decide_checked
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Plan
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.loop import Brain
from tests.kit.builders import (
    a_limit,
    a_node,
    a_snapshot,
    a_spec,
    a_task,
    preempting,
    running,
    started_event,
    submitted_event,
)
from tests.kit.clock import at
from tests.services.scheduler.scheduler_harness import SchedulerHarness, inventory_of, node_changed

Twist = Callable[[Snapshot, Plan], Plan]
NODES = (a_node("a0", group="a"), a_node("b0", group="b"), a_node("c0", group="c"))


def of(group: str, task_id: str, *, submitted: float = 0.0, **spec: object) -> Task:
    return a_task(task_id, spec=a_spec(group=group, **spec), submitted=submitted)


def twisted(group: str) -> Twist:
    """Starts of this group get a wrong attempt."""

    def twist(snapshot: Snapshot, plan: Plan) -> Plan:
        decisions = tuple(
            replace(each, attempt=each.attempt + 1)
            if isinstance(each, Assign) and snapshot.tasks[each.task_id].group == group
            else each
            for each in plan.decisions
        )
        return replace(plan, decisions=decisions)

    return twist


class Careless:
    """A policy with a defect that can be mended."""

    def __init__(self, twist: Twist) -> None:
        self.twist: Twist | None = twist
        self.rounds = 0

    def __call__(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.rounds += 1
        plan = decide(snapshot, now)
        return plan if self.twist is None else self.twist(snapshot, plan)


async def a_scheduler(
    careless: Careless, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> SchedulerHarness:
    """A scheduler whose policy is careless."""

    class CarelessBrain(Brain):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **{**more, "policy_function": careless})  # type: ignore[arg-type]

    monkeypatch.setattr("services.scheduler.main.Brain", CarelessBrain)
    return await SchedulerHarness(**settings).start(*NODES)


def held_up(group: str) -> float:
    name = "shiftwork_scheduler_group_held_up_rounds_total"
    return REGISTRY.get_sample_value(name, {"group": group}) or 0.0


# The part of a plan that is right.


def a_plan(tasks: list[Task], **more: object) -> tuple[Snapshot, Plan]:
    snapshot = a_snapshot(tasks, NODES, **more)  # type: ignore[arg-type]
    return snapshot, decide(snapshot, at(60))


def sound(snapshot: Snapshot, twist: Twist) -> CheckedPlan:
    """What is left of what a careless policy decides."""
    return decide_checked(snapshot, at(60), Careless(twist), check)


def test_a_correct_plan_is_unchanged() -> None:
    snapshot, plan = a_plan([of("a", "a1"), of("b", "b1")])
    careless = Careless(lambda *_: plan)
    assert decide_checked(snapshot, at(60), careless, check).plan is plan
    assert careless.rounds == 1


def test_a_refused_group_does_not_stop_the_others() -> None:
    snapshot, _ = a_plan([of("a", "a1"), of("b", "b1"), of("c", "c1")])
    checked = sound(snapshot, twisted("b"))
    assert [each.task_id for each in checked.plan.decisions] == ["a1", "c1"]
    assert set(checked.refused) == {"b"}
    assert set(checked.plan.scans) == {"a", "c"}
    assert checked.plan.left_out == {"b"}


def test_deadlines_goals_and_drains_of_a_refused_group_stay_in_the_plan() -> None:
    silent = replace(preempting(of("a", "silent"), {"a0": tuple(range(8))}, deadline=60))
    paused = replace(of("a", "paused"), goal=Goal.PAUSE)
    back = replace(of("a", "back", gpus=0), state=TaskState.PAUSED)
    drained = running(of("a", "drained"), {"a1": tuple(range(8))})
    nodes = [*NODES, a_node("a1", group="a", draining=True), a_node("a2", group="a")]
    snapshot = a_snapshot([silent, paused, back, drained, of("a", "starts")], nodes)
    plan = decide(snapshot, at(60))
    starts = {each.task_id for each in plan.decisions if isinstance(each, Assign)}
    assert "starts" in starts
    checked = sound(snapshot, twisted("a"))
    kinds = [(each.kind, each.task_id) for each in checked.plan.decisions]
    assert kinds == [
        ("kill", "silent"),
        ("move", "back"),
        ("move", "paused"),
        ("preempt", "drained"),
    ]
    assert check(snapshot, checked.plan) == []


def test_an_urgent_decision_that_is_wrong_itself_is_left_out_alone() -> None:
    tasks = [
        preempting(of("a", name), {node: tuple(range(8))}, deadline=60)
        for name, node in (("x", "a0"), ("y", "a1"))
    ]
    snapshot = a_snapshot(tasks, [*NODES, a_node("a1", group="a")])

    def twist(_snapshot: Snapshot, plan: Plan) -> Plan:
        wrong = tuple(
            replace(each, attempt=7) if each.task_id == "x" else each for each in plan.decisions
        )
        return replace(plan, decisions=wrong)

    checked = sound(snapshot, twist)
    assert [each.task_id for each in checked.plan.decisions] == ["y"]
    assert checked.plan.left_out_tasks == {"x"}
    assert set(checked.refused_tasks) == {"x"}


def test_a_broken_limit_across_groups_refuses_each_group_that_gives_some_of_it() -> None:
    tasks = [of("a", "a1"), of("b", "b1"), of("c", "c1")]
    tasks[2] = replace(tasks[2], owner="bob")
    unlimited = a_snapshot(tasks, NODES)
    limit = a_limit(8, group="", unit=Unit.GPUS)

    def blind(snapshot: Snapshot, now: datetime) -> Plan:
        return decide(replace(unlimited, left_out=snapshot.left_out), now)

    checked = decide_checked(a_snapshot(tasks, NODES, limits=[limit]), at(60), blind, check)
    assert [each.task_id for each in checked.plan.decisions] == ["c1"]
    assert {each.fault for each in checked.violations} == {Fault.QUOTA}
    assert set(checked.refused) == {"a", "b"}


def a_quota_that_moves_between_groups() -> Snapshot:
    """A run in group a sinks from HIGH to LOW; by that a task of group b may start at HIGH."""
    runner = running(of("a", "runs", priority=Priority.HIGH), {"a0": tuple(range(8))})
    tasks = [
        replace(runner, priority=Priority.LOW),
        of("b", "b1", priority=Priority.HIGH),
        of("a", "a1"),
    ]
    limits = [a_limit(8, group="", priority=Priority.HIGH)]
    return a_snapshot(tasks, [*NODES, a_node("a9", group="a")], limits=limits)


def test_what_a_refused_group_would_give_back_of_a_quota_is_not_taken_by_others() -> None:
    snapshot = a_quota_that_moves_between_groups()
    plan = decide(snapshot, at(60))
    assert {"a1", "b1"} == {each.task_id for each in plan.decisions if isinstance(each, Assign)}
    assert check(snapshot, plan) == []
    checked = sound(snapshot, twisted("a"))
    assert set(checked.refused) == {"a"}, "nothing is wrong with the other group"
    assert {each.fault for each in checked.violations} == {Fault.WRONG_ATTEMPT}
    assert check(snapshot, checked.plan) == []
    assert checked.plan.explanations["b1"].code is ReasonCode.WAITS_FOR_QUOTA
    assert [(each.kind, each.task_id) for each in checked.plan.decisions] == [("hold", "b1")]


def test_nothing_remains_of_a_plan_for_another_snapshot() -> None:
    snapshot, _ = a_plan([of("a", "a1"), of("b", "b1")])
    checked = sound(snapshot, lambda _snapshot, plan: replace(plan, version=99))
    assert checked.plan.decisions == ()
    assert set(checked.refused) == {"a", "b"}


def test_a_decision_about_a_task_that_is_not_there_is_left_out_alone() -> None:
    snapshot, _ = a_plan([of("a", "a1"), of("b", "b1")])

    def twist(_snapshot: Snapshot, plan: Plan) -> Plan:
        ghost = replace(plan.decisions[0], task_id="ghost")
        return replace(plan, decisions=(ghost, *plan.decisions[1:]))

    checked = sound(snapshot, twist)
    assert [each.task_id for each in checked.plan.decisions] == ["b1"]
    assert set(checked.refused_tasks) == {"ghost"}
    assert not checked.refused


def test_a_policy_that_decides_about_a_left_out_group_affects_no_other_group() -> None:
    snapshot, plan = a_plan([of("a", "a1"), of("b", "b1")])
    checked = sound(snapshot, lambda *_: twisted("a")(snapshot, plan))
    assert [each.task_id for each in checked.plan.decisions] == ["b1"]
    assert set(checked.refused) == {"a"}


# The loop.


async def test_the_loop_commits_the_correct_part_and_tries_the_rest_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careless = Careless(twisted("a"))
    scheduler = await a_scheduler(careless, monkeypatch)
    await scheduler.handle(submitted_event(of("a", "a1")), submitted_event(of("b", "b1")))
    await scheduler.settle()
    published = [
        each.task_id for each in await scheduler.published() if isinstance(each, RunAssigned)
    ]
    assert published == ["b1"]
    await scheduler.handle(submitted_event(of("c", "c1")))
    await scheduler.settle()
    published = [
        each.task_id for each in await scheduler.published() if isinstance(each, RunAssigned)
    ]
    assert published == ["c1"]
    # Nothing changes, and yet it is tried again, at a tick.
    rounds = careless.rounds
    scheduler.clock.move_to(1)
    assert await scheduler.step() == 1.0
    assert careless.rounds == rounds + 2, "once, and again without the group"
    careless.twist = None
    # And then after twice as long.
    scheduler.clock.move_to(3)
    await scheduler.settle()
    published = [
        each.task_id for each in await scheduler.published() if isinstance(each, RunAssigned)
    ]
    assert published == ["a1"]
    await scheduler.settle()
    rounds = careless.rounds
    await scheduler.step()
    assert careless.rounds == rounds, "everything is settled again"


async def test_deadlines_and_goals_of_a_refused_group_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careless = Careless(twisted("a"))
    careless.twist = None
    scheduler = await a_scheduler(careless, monkeypatch)
    await scheduler.handle(submitted_event(of("a", "low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    await scheduler.handle(submitted_event(of("a", "high", priority=Priority.HIGH, submitted=1)))
    await scheduler.settle()
    published = [
        each for each in await scheduler.published() if isinstance(each, PreemptionRequested)
    ]
    assert [each.task_id for each in published] == ["low"]
    # From here on every round tries a start in the group that is refused.
    careless.twist = twisted("a")
    more = a_node("a1", group="a")
    await scheduler.handle(node_changed(more), inventory_of(*NODES, more))
    await scheduler.handle(
        submitted_event(of("a", "small", gpus=1)), submitted_event(of("a", "s2"))
    )
    for second in range(2, 60, 10):
        scheduler.clock.move_to(second)
        await scheduler.settle()
    scheduler.clock.move_to(60)
    await scheduler.handle(
        GoalChanged(task_id="s2", goal=Goal.PAUSE, revision=2, changed_at=at(60))
    )
    await scheduler.settle()
    published = await scheduler.published()
    assert [each.task_id for each in published if isinstance(each, KillRequested)] == ["low"]
    assert (await scheduler.task("s2")).state is TaskState.PAUSED
    assert not [each for each in published if isinstance(each, RunAssigned)]


async def test_what_came_due_in_a_refused_group_is_still_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A retry becomes due while the group is refused: it is still due afterwards."""
    careless = Careless(twisted("a"))
    scheduler = await a_scheduler(careless, monkeypatch)
    waits = replace(of("a", "a1"), not_before_at=at(30), accepted=True)
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.put(waits)
    for _ in range(2):
        await scheduler.settle()
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert not brain.snapshot().pools["a"].arrived, "time alone makes it come up"
    scheduler.clock.move_to(30)
    for _ in range(3):
        await scheduler.step()
    careless.twist = None
    scheduler.clock.move_to(31)
    await scheduler.settle()
    assert (await scheduler.task("a1")).state is TaskState.STARTING


async def test_after_refusals_in_a_row_the_rows_are_loaded_and_explain_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loads: list[int] = []
    honest = loop.store.load

    async def load(*args: object) -> object:
        loads.append(1)
        return await honest(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.store, "load", load)
    careless = Careless(twisted("a"))
    scheduler = await a_scheduler(careless, monkeypatch, refusals_max=3, dumps=tmp_path)
    await scheduler.handle(submitted_event(of("a", "a1")), submitted_event(of("b", "b1")))
    before, loaded = held_up("a"), len(loads)
    for minute in range(2):
        scheduler.clock.move_to(60 * minute)
        await scheduler.step()
    assert (await scheduler.explained("a1")).reason.code is not ReasonCode.PLAN_REFUSED
    assert len(loads) == loaded
    scheduler.clock.move_to(120)
    await scheduler.step()
    assert held_up("a") == before + 1
    why = (await scheduler.explained("a1")).reason
    assert why.code is ReasonCode.PLAN_REFUSED
    assert render(why) == (
        "waits because nothing is given out in group a since 2026-01-01 00:00:00Z: what was"
        " decided there was wrong, or deciding failed, 3 times in a row (WRONG_ATTEMPT); this is a"
        " defect, an administrator should report it"
    )
    assert (await scheduler.explained("b1")).reason.code is not ReasonCode.PLAN_REFUSED
    for minute in range(3, 24):
        scheduler.clock.move_to(60 * minute)
        await scheduler.step()
    # At 3, 6, 12 and 24 in a row: loading costs, and has not helped.
    assert len(loads) == loaded + 3
    out = capsys.readouterr().out
    assert out.count("decisions of a group are held up") == 4
    assert out.count("plan refused") == 5, "the first, and those four"
    assert len(list(tmp_path.glob("*"))) <= 5  # noqa: ASYNC240 - a test's own folder
    careless.twist = None
    scheduler.clock.move_to(60 * 24)
    await scheduler.settle()
    assert "decisions of a group pass again" in capsys.readouterr().out
    assert (await scheduler.task("a1")).state is TaskState.STARTING
    assert (await scheduler.explained("a1")).reason.code is not ReasonCode.PLAN_REFUSED


async def test_a_group_about_which_nothing_is_to_be_decided_is_not_refused_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tasks have ended, and the rows were reloaded: no plan for the group is left to check."""
    careless = Careless(twisted("a"))
    scheduler = await a_scheduler(careless, monkeypatch, refusals_max=2)
    await scheduler.handle(submitted_event(of("a", "a1")))
    for minute in range(3):
        scheduler.clock.move_to(60 * minute)
        await scheduler.step()
    assert (await scheduler.explained("a1")).reason.code is ReasonCode.PLAN_REFUSED
    await scheduler.handle(
        GoalChanged(task_id="a1", goal=Goal.STOP, revision=2, changed_at=at(120))
    )
    await scheduler.settle()
    assert not await scheduler.tasks()
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    brain._reload = True
    scheduler.clock.move_to(240)
    await scheduler.settle()
    await scheduler.handle(submitted_event(of("a", "a2")))
    assert (await scheduler.explained("a2")).reason.code is not ReasonCode.PLAN_REFUSED


async def test_memory_that_differs_from_the_rows_is_repaired_by_the_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index believes in a node that the rows do not have: every plan with it is refused."""
    careless = Careless(lambda _snapshot, plan: plan)
    scheduler = await a_scheduler(careless, monkeypatch, refusals_max=3)
    await scheduler.handle(submitted_event(of("a", "a1")))
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert isinstance(brain, Brain)
    index = brain.snapshot().index
    wrong: Node = replace(index.nodes["a0"], group="other")
    # A defect in the incremental index would leave it so.
    index.nodes[wrong.id] = wrong
    for minute in range(3):
        scheduler.clock.move_to(60 * minute)
        await scheduler.step()
        assert (await scheduler.task("a1")).state is TaskState.QUEUED
    scheduler.clock.move_to(180)
    await scheduler.settle()
    assert (await scheduler.task("a1")).state is TaskState.STARTING
