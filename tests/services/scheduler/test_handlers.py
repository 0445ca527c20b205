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
    at,
    exited_event,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.services.scheduler.scheduler_harness import World, inventory_of, node_changed


@pytest_asyncio.fixture
async def world() -> World:
    made = await World().start()
    nodes = some_nodes(1)
    await made.hear(*(node_changed(node) for node in nodes), inventory_of(*nodes))
    return made


def dropped(why: str) -> float:
    return DROPPED.labels(why)._value.get()


def goal(value: Goal, revision: int) -> GoalChanged:
    return GoalChanged(task_id="t1", goal=value, revision=revision, changed_at=at(0))


async def started(world: World) -> Task:
    """Submitted, assigned, running."""
    await world.hear(submitted_event(a_task()))
    await world.settle()
    await world.hear(started_event(await world.task("t1"), now=1))
    return await world.task("t1")


async def test_a_task_goes_from_submission_to_its_end(world: World) -> None:
    task = await started(world)
    assert task.state is TaskState.RUNNING
    await world.hear(exited_event(task, now=5))
    assert await world.tasks() == {}
    said = await world.said()
    states = [each.state for each in said if isinstance(each, TaskStateChanged)]
    assert states == [
        TaskState.QUEUED,
        TaskState.STARTING,
        TaskState.RUNNING,
        TaskState.SUCCEEDED,
    ]
    versions = [each.version for each in said if isinstance(each, TaskStateChanged)]
    assert versions == sorted(set(versions))


async def test_every_event_twice_changes_nothing_more(world: World) -> None:
    task = await started(world)
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
    await world.hear(*events)
    once = await world.task("t1")
    await world.said()
    await world.hear(*events)
    assert await world.task("t1") == once
    assert await world.said() == []


async def test_a_goal_before_its_task_is_kept_for_it(world: World) -> None:
    await world.hear(goal(Goal.STOP, 3), goal(Goal.RUN, 2))
    level = PriorityChanged(task_id="t1", priority=Priority.LOW, revision=4, changed_at=at(0))
    await world.hear(level, submitted_event(a_task()))
    task = await world.task("t1")
    assert (task.goal, task.priority, task.revision) == (Goal.STOP, Priority.LOW, 4)
    async with world.store.transaction() as tx:
        assert await tx.select(EarlyFacts) == []
    await world.settle()
    assert await world.tasks() == {}, "stopped without ever starting"


async def test_what_comes_after_the_end_changes_nothing(world: World) -> None:
    task = await started(world)
    await world.hear(exited_event(task, now=5))
    before = dropped("ended_task")
    await world.said()
    await world.hear(
        submitted_event(task),
        goal(Goal.STOP, 9),
        PriorityChanged(task_id="t1", revision=9, changed_at=at(0)),
        started_event(task),
        CheckpointSaved(task_id="t1", attempt=1, checkpoint=a_checkpoint(9)),
        exited_event(task),
    )
    assert await world.tasks() == {}
    assert await world.said() == []
    assert dropped("ended_task") == before + 6


async def test_runs_of_unknown_tasks_are_dropped(world: World) -> None:
    before = dropped("unknown_task")
    ghost = a_task("ghost")
    await world.hear(
        started_event(ghost),
        exited_event(ghost, attempt=1),
        CheckpointSaved(task_id="ghost", attempt=1, checkpoint=a_checkpoint(1)),
    )
    assert dropped("unknown_task") == before + 3
    assert await world.tasks() == {}


async def test_an_exit_before_its_start(world: World) -> None:
    await world.hear(submitted_event(a_task()))
    await world.settle()
    task = await world.task("t1")
    await world.hear(exited_event(task, ExitKind.LOST, now=5))
    await world.hear(started_event(task, now=1))
    task = await world.task("t1")
    assert (task.state, task.run_started_at) == (TaskState.QUEUED, None)


async def test_the_newest_node_wins_in_any_order(world: World) -> None:
    new = a_node("n9", version=7, ready=False, unusable=(1,), draining=True, cpus=2.0)
    new = replace(new, labels=(("leaf", "l1"), ("zone", "a")), taints=("flaky", "for=vision"))
    await world.hear(node_changed(new), node_changed(a_node("n9", version=6)))
    async with world.store.transaction() as tx:
        assert await tx.get(Node, "n9") == new
    await world.hear(node_changed(a_node("n9", version=8, removed=True)))
    await world.hear(node_changed(a_node("n9", version=7)))
    async with world.store.transaction() as tx:
        kept = await tx.get(Node, "n9")
        assert kept is not None
        assert kept.removed


async def test_the_newest_list_of_nodes_wins(world: World) -> None:
    await world.hear(inventory_of(a_node("a"), listed=9), inventory_of(a_node("b"), listed=8))
    async with world.store.transaction() as tx:
        kept = await tx.get(Inventory, "process")
        assert kept is not None
        assert kept.node_ids == ("a",)


async def test_a_list_with_a_higher_version_wins_although_the_clock_was_set_back(
    world: World,
) -> None:
    await world.hear(
        inventory_of(a_node("a"), listed=9, version=4),
        inventory_of(a_node("b"), listed=1, version=5),
        inventory_of(a_node("c"), listed=10, version=4),
    )
    async with world.store.transaction() as tx:
        kept = await tx.get(Inventory, "process")
        assert kept is not None
        assert kept.node_ids == ("b",)


async def test_the_newest_limit_wins_also_in_another_unit(world: World) -> None:
    def changed(limit: int, unit: Unit, version: int, *, removed: bool = False) -> QuotaChanged:
        quota = Quota(group="default", user="ann", unit=unit, limit=limit)
        return QuotaChanged(
            group_token="default", quota=quota, version=version, removed=removed, changed_at=at(0)
        )

    await world.hear(
        changed(8, Unit.GPUS, 1),
        changed(2, Unit.NODES, 3),
        changed(8, Unit.GPUS, 2, removed=True),
    )
    async with world.store.transaction() as tx:
        (row,) = await tx.select(Limit)
    assert (row.unit, row.limit, row.removed) == (Unit.NODES, 2, False)


async def test_retries_wait_as_the_settings_say() -> None:
    world = await World(retry_delay_seconds=3.0).start()
    await world.hear(node_changed(a_node("n0")))
    task = a_task()
    spec = task.spec.model_copy(
        update={"retry": task.spec.retry.model_copy(update={"max_retries": 1})}
    )
    await world.hear(submitted_event(task).model_copy(update={"spec": spec}))
    await world.settle()
    await world.hear(exited_event(await world.task("t1"), ExitKind.FAILED))
    assert (await world.task("t1")).not_before_at == at(3)
