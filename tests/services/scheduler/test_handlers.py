from __future__ import annotations

from dataclasses import replace

import pytest_asyncio

from libs.contracts.base import Message
from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    Priority,
    PriorityChanged,
    Quota,
    QuotaChanged,
    TaskState,
    TaskStateChanged,
    Unit,
)
from services.scheduler.domain.model.rows import EarlyFacts, Inventory, Limit, Node, Task
from services.scheduler.handlers import DROPPED
from tests.kit.builders import (
    a_checkpoint,
    a_node,
    a_task,
    exited_event,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.kit.clock import at
from tests.services.scheduler.scheduler_harness import SchedulerHarness, inventory_of, node_changed


@pytest_asyncio.fixture
async def scheduler() -> SchedulerHarness:
    return await SchedulerHarness().start(*some_nodes(1))


def dropped(why: str) -> float:
    return DROPPED.labels(why)._value.get()


def goal(value: Goal, revision: int) -> GoalChanged:
    return GoalChanged(task_id="t1", goal=value, revision=revision, changed_at=at(0))


async def started(scheduler: SchedulerHarness) -> Task:
    """Submitted, assigned, running."""
    await scheduler.handle(submitted_event(a_task()))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("t1"), now=1))
    return await scheduler.task("t1")


async def test_a_task_goes_from_submission_to_its_end(scheduler: SchedulerHarness) -> None:
    task = await started(scheduler)
    assert task.state is TaskState.RUNNING
    await scheduler.handle(exited_event(task, now=5))
    assert await scheduler.tasks() == {}
    published = await scheduler.published()
    states = [each.state for each in published if isinstance(each, TaskStateChanged)]
    assert states == [
        TaskState.QUEUED,
        TaskState.STARTING,
        TaskState.RUNNING,
        TaskState.SUCCEEDED,
    ]
    versions = [each.version for each in published if isinstance(each, TaskStateChanged)]
    assert versions == sorted(set(versions))


async def test_every_event_twice_changes_nothing_more(scheduler: SchedulerHarness) -> None:
    task = await started(scheduler)
    checkpoint = CheckpointSaved(task_id="t1", attempt=1, checkpoint=a_checkpoint(1))
    events: list[Message] = [
        submitted_event(task),
        started_event(task, now=1),
        node_changed(a_node("n0")),
        inventory_of(a_node("n0")),
        checkpoint,
        goal(Goal.RUN, 2),
        PriorityChanged(task_id="t1", priority=Priority.HIGH, revision=3, changed_at=at(0)),
    ]
    await scheduler.handle(*events)
    once = await scheduler.task("t1")
    await scheduler.published()
    await scheduler.handle(*events)
    assert await scheduler.task("t1") == once
    assert await scheduler.published() == []


async def test_a_goal_before_its_task_is_kept_for_it(scheduler: SchedulerHarness) -> None:
    await scheduler.handle(goal(Goal.STOP, 3), goal(Goal.RUN, 2))
    level = PriorityChanged(task_id="t1", priority=Priority.LOW, revision=4, changed_at=at(0))
    await scheduler.handle(level, submitted_event(a_task()))
    task = await scheduler.task("t1")
    assert (task.goal, task.priority, task.revision) == (Goal.STOP, Priority.LOW, 4)
    async with scheduler.store.transaction() as tx:
        assert await tx.select(EarlyFacts) == []
    await scheduler.settle()
    assert await scheduler.tasks() == {}, "stopped without ever starting"


async def test_events_after_the_end_change_nothing(scheduler: SchedulerHarness) -> None:
    task = await started(scheduler)
    await scheduler.handle(exited_event(task, now=5))
    before = dropped("ended_task")
    await scheduler.published()
    await scheduler.handle(
        submitted_event(task),
        goal(Goal.STOP, 9),
        PriorityChanged(task_id="t1", revision=9, changed_at=at(0)),
        started_event(task),
        CheckpointSaved(task_id="t1", attempt=1, checkpoint=a_checkpoint(9)),
        exited_event(task),
    )
    assert await scheduler.tasks() == {}
    assert await scheduler.published() == []
    assert dropped("ended_task") == before + 6


async def test_runs_of_unknown_tasks_are_dropped(scheduler: SchedulerHarness) -> None:
    before = dropped("unknown_task")
    ghost = a_task("ghost")
    await scheduler.handle(
        started_event(ghost),
        exited_event(ghost, attempt=1),
        CheckpointSaved(task_id="ghost", attempt=1, checkpoint=a_checkpoint(1)),
    )
    assert dropped("unknown_task") == before + 3
    assert await scheduler.tasks() == {}


async def test_an_exit_before_its_start(scheduler: SchedulerHarness) -> None:
    await scheduler.handle(submitted_event(a_task()))
    await scheduler.settle()
    task = await scheduler.task("t1")
    await scheduler.handle(exited_event(task, ExitKind.LOST, now=5))
    await scheduler.handle(started_event(task, now=1))
    task = await scheduler.task("t1")
    assert (task.state, task.run_started_at) == (TaskState.QUEUED, None)


async def test_the_newest_node_wins_in_any_order(scheduler: SchedulerHarness) -> None:
    new = a_node("n9", version=7, ready=False, unusable=(1,), draining=True, cpus=2.0)
    new = replace(new, labels=(("leaf", "l1"), ("zone", "a")), taints=("flaky", "for=vision"))
    await scheduler.handle(node_changed(new), node_changed(a_node("n9", version=6)))
    async with scheduler.store.transaction() as tx:
        assert await tx.get(Node, "n9") == new
    await scheduler.handle(node_changed(a_node("n9", version=8, removed=True)))
    await scheduler.handle(node_changed(a_node("n9", version=7)))
    async with scheduler.store.transaction() as tx:
        kept = await tx.get(Node, "n9")
        assert kept is not None
        assert kept.removed


async def test_the_newest_list_of_nodes_wins(scheduler: SchedulerHarness) -> None:
    await scheduler.handle(inventory_of(a_node("a"), listed=9), inventory_of(a_node("b"), listed=8))
    async with scheduler.store.transaction() as tx:
        kept = await tx.get(Inventory, "process")
        assert kept is not None
        assert kept.node_ids == ("a",)


async def test_a_list_with_a_higher_version_wins_although_the_clock_was_set_back(
    scheduler: SchedulerHarness,
) -> None:
    await scheduler.handle(
        inventory_of(a_node("a"), listed=9, version=4),
        inventory_of(a_node("b"), listed=1, version=5),
        inventory_of(a_node("c"), listed=10, version=4),
    )
    async with scheduler.store.transaction() as tx:
        kept = await tx.get(Inventory, "process")
        assert kept is not None
        assert kept.node_ids == ("b",)


async def test_the_newest_limit_wins_also_in_another_unit(scheduler: SchedulerHarness) -> None:
    def changed(limit: int, unit: Unit, version: int, *, removed: bool = False) -> QuotaChanged:
        quota = Quota(group="default", user="ann", unit=unit, limit=limit)
        return QuotaChanged(
            group_token="default", quota=quota, version=version, removed=removed, changed_at=at(0)
        )

    await scheduler.handle(
        changed(8, Unit.GPUS, 1),
        changed(2, Unit.NODES, 3),
        changed(8, Unit.GPUS, 2, removed=True),
    )
    async with scheduler.store.transaction() as tx:
        (row,) = await tx.select(Limit)
    assert (row.unit, row.limit, row.removed) == (Unit.NODES, 2, False)


async def test_retries_wait_according_to_the_settings() -> None:
    scheduler = await SchedulerHarness(retry_delay_seconds=3.0).start()
    await scheduler.handle(node_changed(a_node("n0")))
    task = a_task()
    spec = task.spec.model_copy(
        update={"retry": task.spec.retry.model_copy(update={"max_retries": 1})}
    )
    await scheduler.handle(submitted_event(task).model_copy(update={"spec": spec}))
    await scheduler.settle()
    await scheduler.handle(exited_event(await scheduler.task("t1"), ExitKind.FAILED))
    assert (await scheduler.task("t1")).not_before_at == at(3)
