"""A row that cannot be loaded or decoded is set apart: it keeps its nodes and stops nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.messages import (
    ExitKind,
    Goal,
    GoalChanged,
    Priority,
    Quota,
    QuotaChanged,
    ReasonCode,
    TaskState,
    Unit,
)
from libs.contracts.reasons import render
from libs.store.port import ObserverError, UnreadableRowError
from services.scheduler import set_apart, store
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Limit, Node, Task
from services.scheduler.tables import TABLES
from tests.kit.builders import (
    a_limit,
    a_node,
    a_task,
    exited_event,
    running,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.kit.clock import at
from tests.services.scheduler.faults import (
    NODES,
    a_scheduler,
    loads_of,
    metric,
    of,
    raising,
    started,
)
from tests.services.scheduler.scheduler_harness import node_changed


def entering_fails(monkeypatch: pytest.MonkeyPatch, *task_ids: str) -> None:
    failing = raising(Pool.enter, lambda _pool, task: task.id in task_ids)
    monkeypatch.setattr(Pool, "enter", failing)


async def test_a_row_that_cannot_be_loaded_is_set_apart_and_keeps_its_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(of("a", "poison", gpus=1)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("poison")))
    entering_fails(monkeypatch, "poison")
    await scheduler.restart()
    out = capsys.readouterr().out
    assert "a row cannot be loaded and is set apart" in out
    assert "Task poison" in out
    assert metric("rows_set_apart", kind="Task") == 1
    assert "Task poison" in scheduler.service.warning()
    why = (await scheduler.explained("poison")).reason
    assert why.code is ReasonCode.ROW_SET_APART
    assert "PoisonError" in render(why)
    # Nothing is started beside it, even after its node is described again.
    await scheduler.handle(submitted_event(of("a", "a2", gpus=1)), submitted_event(of("b", "b1")))
    await scheduler.handle(node_changed(replace(NODES[0], version=2, cpus=8.0)))
    await scheduler.settle()
    assert await started(scheduler) == ["poison", "b1"]
    assert (await scheduler.task("a2")).state is TaskState.QUEUED
    # The scheduler records its end, which frees its node.
    await scheduler.handle(exited_event(await scheduler.task("poison"), ExitKind.OK))
    await scheduler.settle()
    assert set(await scheduler.tasks()) == {"a2", "b1"}
    assert (await scheduler.task("a2")).state is TaskState.STARTING
    assert metric("rows_set_apart", kind="Task") == 0
    assert not scheduler.service.warning()


async def test_a_task_whose_row_cannot_be_decoded_is_set_apart_and_keeps_its_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scheduler = await a_scheduler()
    poison = of("a", "poison", gpus=1)
    await scheduler.handle(submitted_event(poison), node_changed(a_node("a1", group="a")))
    await scheduler.settle()
    assert {each.node_id for each in (await scheduler.task("poison")).placements} == {"a0"}
    await scheduler.handle(started_event(await scheduler.task("poison")))
    scheduler.platform.database.break_row(TABLES, Task, "poison", column="placements")
    await scheduler.restart()
    assert "a row cannot be loaded and is set apart" in capsys.readouterr().out
    assert metric("rows_set_apart", kind="Task") == 1
    assert "Task poison; nodes withheld: 1" in scheduler.service.warning()
    reply = await scheduler.explained("poison")
    assert reply.reason.code is ReasonCode.ROW_SET_APART
    assert "placements" in render(reply.reason)
    assert reply.forecast is not None
    assert reply.forecast.unknown
    # Nothing is started beside it, and the others start: no commit meets its slots.
    before = metric("plans_refused_total", why="conflict")
    await scheduler.handle(*(submitted_event(of("a", f"a{n}", gpus=8)) for n in (2, 3)))
    await scheduler.handle(node_changed(replace(NODES[0], version=2, cpus=8.0)))
    await scheduler.settle()
    assert await started(scheduler) == ["poison", "a2"]
    assert metric("plans_refused_total", why="conflict") == before
    # A later event about the task does not replace it.
    with pytest.raises(UnreadableRowError):
        await scheduler.handle(submitted_event(poison))
    with pytest.raises(UnreadableRowError):
        await scheduler.handle(exited_event(running(poison, {"a0": (0,)}), ExitKind.OK))
    await scheduler.settle()
    assert [each.id for each in scheduler.store.unreadable(Task)] == ["poison"]
    # Repaired, it is loaded by the next leader.
    scheduler.platform.database.schema(TABLES.schema).table(TABLES.shape(Task)).broken.clear()
    await scheduler.restart()
    assert not scheduler.service.warning()
    assert metric("rows_set_apart", kind="Task") == 0
    await scheduler.handle(exited_event(await scheduler.task("poison"), ExitKind.OK))
    await scheduler.settle()
    assert await started(scheduler) == ["a3"]


async def test_other_rows_that_cannot_be_decoded_are_set_apart() -> None:
    scheduler = await a_scheduler()
    limit = QuotaChanged(
        quota=Quota(group="b", priority=Priority.HIGH, unit=Unit.GPUS, limit=8),
        version=1,
        changed_at=at(0),
    )
    await scheduler.handle(limit, *(submitted_event(of(each, f"{each}1")) for each in "abc"))
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.put(GroupPolicy("c", policy="fifo"))
    scheduler.platform.database.break_row(TABLES, Node, "a0", column="labels")
    scheduler.platform.database.break_row(TABLES, GroupPolicy, "c", column="shares")
    scheduler.platform.database.break_row(
        TABLES, Limit, "b", "", "", Priority.HIGH, False, column="unit"
    )
    await scheduler.restart()
    await scheduler.settle()
    assert await started(scheduler) == ["b1"]
    for kind in ("Node", "GroupPolicy", "Limit"):
        assert metric("rows_set_apart", kind=kind) == 1
    assert (await scheduler.explained("c1")).reason.code is ReasonCode.ROW_SET_APART
    # One that is written again is loaded again, and nothing else.
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.put(a_limit(4, group="b", priority=Priority.HIGH))
    await scheduler.settle()
    assert metric("rows_set_apart", kind="Limit") == 0
    assert metric("rows_set_apart", kind="Node") == 1


async def test_a_row_that_is_set_apart_is_tried_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(of("a", "poison")))
    entering_fails(monkeypatch, "poison")
    await scheduler.restart()
    await scheduler.settle()
    assert (await scheduler.task("poison")).state is TaskState.QUEUED
    monkeypatch.undo()
    goal = GoalChanged(task_id="poison", goal=Goal.RUN, revision=3, changed_at=at(1))
    await scheduler.handle(goal)
    await scheduler.settle()
    assert (await scheduler.task("poison")).state is TaskState.STARTING
    assert not scheduler.service.warning()


@pytest.mark.parametrize("last", ["end", "pause", "mended"])
async def test_a_set_apart_row_that_changes_often_is_tried_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """The row of a run that saves twice a second is one; its end and preemption do not wait."""
    scheduler = await a_scheduler(refusal_backoff_seconds_max=8.0)
    await scheduler.handle(submitted_event(of("a", "poison", gpus=1)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("poison")))
    entering_fails(monkeypatch, "poison")
    await scheduler.restart()
    await scheduler.handle(submitted_event(of("a", "a2", gpus=1)))
    loads = loads_of(monkeypatch)
    tried: list[float] = []
    for half in range(40):
        scheduler.clock.move_to(half / 2)
        async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
            task = await tx.get(Task, "poison")
            assert task is not None
            tx.put(replace(task, move_seconds=float(half)))
        before = len(loads)
        await scheduler.settle()
        tried += [half / 2] * (len(loads) - before)
        assert (await scheduler.task("a2")).state is TaskState.QUEUED, "its node is withheld"
    assert tried == [0, 1, 3, 7, 15]
    if last == "mended":
        monkeypatch.undo()
        scheduler.clock.move_to(23)
        await scheduler.settle()
    else:
        exit_kind = ExitKind.OK if last == "end" else ExitKind.PREEMPTED
        await scheduler.handle(exited_event(task, exit_kind))
        await scheduler.settle()
    assert (await scheduler.task("a2")).state is TaskState.STARTING
    assert bool(scheduler.service.warning()) is (last == "pause")


@pytest.mark.parametrize("count", [1, 40])
async def test_rows_that_cannot_be_loaded_are_found_among_many(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(*(submitted_event(of("b", f"t{n:03}", gpus=1)) for n in range(200)))
    bad = {f"t{n:03}" for n in range(0, 5 * count, 5)}
    entering_fails(monkeypatch, *bad)
    _, apart = await store.load(scheduler.store, scheduler.settings.policy())
    assert {str(key[0]) for _, key in apart.rows} == bad


def test_a_row_that_fails_only_beside_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(pool: Pool, task: Task) -> bool:
        return task.id == "late" and "early" in pool.sizes

    monkeypatch.setattr(Pool, "enter", raising(Pool.enter, twice))
    tasks = [of("a", "late", submitted=2), of("a", "early", submitted=1), of("a", "z", submitted=3)]
    good, problems = set_apart.sift(PolicySettings(), {Node: list(NODES), Task: tasks})
    assert [each.name for each in problems] == ["Task late"]
    assert [each.id for each in good[Task]] == ["early", "z"]


@pytest.mark.parametrize("beside", [False, True])
def test_many_rows_that_cannot_be_loaded_do_not_each_cost_a_build_of_all(
    monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Alone, or only beside another."""
    bad = {f"t{n:03}" for n in range(1, 200, 2)}

    def poisonous(pool: Pool, task: Task) -> bool:
        return task.id in bad and (not beside or "t000" in pool.sizes)

    monkeypatch.setattr(Pool, "enter", raising(Pool.enter, poisonous))
    whole: list[bool] = []
    honest = set_apart.build

    def build(settings: PolicySettings, rows: set_apart.Rows, *more: Any) -> Index:
        whole.append(len(rows.get(Node, ())) == len(NODES))
        return honest(settings, rows, *more)

    monkeypatch.setattr(set_apart, "build", build)
    tasks = [of("a", f"t{n:03}", submitted=n) for n in range(200)]
    others = [of("b", f"u{n}", submitted=300 + n) for n in range(3)]
    good, problems = set_apart.sift(PolicySettings(), {Node: list(NODES), Task: tasks + others})
    assert sum(whole) <= set_apart.REBUILT_MAX + 5
    apart = {each.row.id for each in problems}
    assert bad <= apart
    assert not apart & {each.id for each in (tasks[0], *others)}
    # In a group with so many rows that fail only together, the rest is set apart as well.
    assert (apart == bad) is not beside
    assert sum(map(len, good.values())) == len(NODES) + 203 - len(apart)


async def test_a_policy_that_cannot_be_loaded_holds_up_its_group_alone() -> None:
    """Under the default policy its runs might have to go."""
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(of("a", "a1")), submitted_event(of("b", "b1")))
    with pytest.raises(ObserverError):
        async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
            # A later version of the platform may have written it.
            tx.put(GroupPolicy("a", policy="unheard of"))
    await scheduler.restart()
    await scheduler.settle()
    assert await started(scheduler) == ["b1"]
    assert "GroupPolicy a" in scheduler.service.warning()
    why = (await scheduler.explained("a1")).reason
    assert why.code is ReasonCode.ROW_SET_APART
    goal = GoalChanged(task_id="a1", goal=Goal.PAUSE, revision=2, changed_at=at(1))
    await scheduler.handle(goal)
    await scheduler.settle()
    assert (await scheduler.task("a1")).state is TaskState.PAUSED
    async with scheduler.store.transaction(epoch=scheduler.epoch) as tx:
        tx.put(GroupPolicy("a", policy="fifo"))
    await scheduler.handle(GoalChanged(task_id="a1", goal=Goal.RUN, revision=3, changed_at=at(2)))
    await scheduler.settle()
    assert (await scheduler.task("a1")).state is TaskState.STARTING


@pytest.mark.parametrize(
    ("row", "method"), [(a_node("bad"), "_put_node"), (a_limit(8, group="c"), "_put")]
)
def test_other_rows_that_cannot_be_loaded_are_set_apart(
    monkeypatch: pytest.MonkeyPatch, row: Node | Limit, method: str
) -> None:
    failing = raising(getattr(Index, method), lambda _index, each: each == row)
    monkeypatch.setattr(Index, method, failing)
    rows = {Node: list(NODES), Limit: [a_limit(4, group="b")], Task: [of("a", "a1")]}
    rows[type(row)].append(row)
    good, problems = set_apart.sift(PolicySettings(), rows)
    assert [each.row for each in problems] == [row]
    assert sum(map(len, good.values())) == len(NODES) + 2


def test_nothing_is_set_apart_of_rows_that_can_be_loaded() -> None:
    nodes = some_nodes(4)
    tasks = [running(a_task("r", gpus=8), {"n0": tuple(range(8))}), a_task("q")]
    good, problems = set_apart.sift(PolicySettings(), {Node: nodes, Task: tasks})
    assert problems == []
    assert {each.id for each in good[Task]} == {"r", "q"}
