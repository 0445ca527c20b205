"""A commit that fails, takes too long or takes effect without an answer is not forgotten."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import Faults, MemoryBroker
from libs.contracts.messages import (
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    Priority,
    RunAssigned,
    TaskState,
)
from libs.service.definition import Ports
from libs.store import migrate
from libs.store.connections import Address, connect
from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError
from libs.store.sql import SqlStore
from services.scheduler.domain.disciplines.timeshare.discipline import features_of
from services.scheduler.domain.model.rows import Task
from services.scheduler.loop import Brain
from services.scheduler.main import WIRING, build
from services.scheduler.settings import SchedulerSettings
from services.scheduler.store import PoolMemory
from services.scheduler.tables import TABLES
from tests.kit.builders import a_task, at, exited_event, some_nodes, started_event, submitted_event
from tests.services.scheduler.scheduler_harness import Hands, World, inventory_of, node_changed

if TYPE_CHECKING:
    from tests.kit.postgres import Database

# Nothing is kept; and everything is kept, but nobody hears of it.
FAILURES = (Point.BEFORE_COMMIT, Point.AFTER_COMMIT)


class Trouble:
    """So many commits fail at a point, then the database works again."""

    def __init__(self, point: Point, times: int) -> None:
        self.point = point
        self.left = times

    async def __call__(self, point: Point, schema: str) -> None:
        del schema
        if point is self.point and self.left:
            self.left -= 1
            raise StoreUnavailableError("canceling statement due to statement timeout")


async def a_world(nodes: int = 1) -> World:
    world = await World().start()
    some = some_nodes(nodes)
    await world.hear(*(node_changed(node) for node in some), inventory_of(*some))
    return world


async def steps(world: World, number: int = 4) -> None:
    """As the loop does it: what is down is waited for."""
    for _ in range(number):
        try:
            await world.step()
        except StoreUnavailableError:
            continue


def brain_of(world: World) -> Brain:
    brain = world.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert isinstance(brain, Brain)
    return brain


async def equals_the_rows(world: World) -> bool:
    return dict(brain_of(world).snapshot().tasks) == await world.tasks()


@pytest.mark.parametrize("point", FAILURES)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_start_whose_commit_failed_is_decided_again(point: Point, times: int) -> None:
    world = await a_world()
    await world.hear(submitted_event(a_task()))
    world.database.fault = Trouble(point, times)
    await steps(world)
    assert (await world.task("t1")).state is TaskState.STARTING
    said = [each for each in await world.said() if isinstance(each, RunAssigned)]
    assert [each.attempt for each in said] == [1]
    assert await equals_the_rows(world)


@pytest.mark.parametrize("point", FAILURES)
async def test_a_kill_at_a_deadline_whose_commit_failed_is_decided_again(point: Point) -> None:
    world = await a_world()
    await world.hear(submitted_event(a_task("low", priority=Priority.LOW)))
    await world.settle()
    await world.hear(started_event(await world.task("low")))
    await world.hear(submitted_event(a_task("high", priority=Priority.HIGH, submitted=1)))
    await world.settle()
    await world.said()
    world.clock.to(60)
    world.database.fault = Trouble(point, 1)
    await steps(world)
    said = [each for each in await world.said() if isinstance(each, KillRequested)]
    assert [each.task_id for each in said] == ["low"]
    assert (await world.task("low")).state is TaskState.KILLING
    assert await equals_the_rows(world)


@pytest.mark.parametrize("point", FAILURES)
async def test_a_stop_whose_commit_failed_is_decided_again(point: Point) -> None:
    world = await a_world()
    await world.hear(submitted_event(a_task()), submitted_event(a_task("t2", submitted=1)))
    await world.settle()
    goal = GoalChanged(task_id="t2", goal=Goal.PAUSE, revision=2, changed_at=at(1))
    await world.hear(goal)
    world.database.fault = Trouble(point, 1)
    await steps(world)
    assert (await world.task("t2")).state is TaskState.PAUSED
    assert await equals_the_rows(world)


@pytest.mark.parametrize("point", FAILURES)
async def test_nothing_is_decided_on_memory_that_may_differ_from_the_rows(point: Point) -> None:
    """The database stays away for a while: the failed plan is neither assumed nor lost."""
    world = await a_world()
    await world.hear(submitted_event(a_task()))
    world.database.fault = Trouble(point, 1)
    with pytest.raises(StoreUnavailableError):
        await world.step()
    world.database.fault = Trouble(Point.BEGIN, 3)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await world.step()
    await steps(world)
    assert (await world.task("t1")).state is TaskState.STARTING
    await world.hear(started_event(await world.task("t1")))
    await world.hear(exited_event(await world.task("t1"), ExitKind.OK))
    await world.settle()
    assert await world.tasks() == {}
    assert await equals_the_rows(world)


@pytest.mark.parametrize("point", FAILURES)
async def test_what_was_learned_is_saved_again_if_its_commit_failed(point: Point) -> None:
    world = await a_world()
    await world.hear(submitted_event(a_task()))
    await world.settle()
    pool = brain_of(world).snapshot().pools["default"]
    pool.history.ended(features_of(pool, await world.task("t1")), 700.0)
    learn = next(loop for loop in world.service.loops if loop.name == "learn")
    world.database.fault = Trouble(point, 1)
    with pytest.raises(StoreUnavailableError):
        await learn.step(world.epoch)
    for _ in range(2):
        try:
            await learn.step(world.epoch)
        except StoreUnavailableError:
            # The transaction before did take effect.
            continue
    async with world.store.transaction() as tx:
        memory = await tx.get(PoolMemory, "default")
    assert memory is not None
    assert memory.learned["ends"] == 1


@pytest.mark.server
async def test_a_lock_on_one_table_delays_a_start_and_does_not_lose_it(database: Database) -> None:
    """PostgreSQL's own time-out ends the commit while another session locks the decisions."""
    role = await database.role("scheduler")
    address = Address(role.url, role.password, statement_timeout_s=0.3)
    await migrate.upgrade(address, TABLES, WIRING.migrations)
    numbers = iter(range(10_000))
    clock = Hands()
    store = SqlStore(
        address, TABLES, clock=clock, source="scheduler", new_id=lambda: f"e{next(numbers)}"
    )
    settings = SchedulerSettings(database_url="-", nats_url="-", node_settle_seconds=0)
    bus = MemoryBus(MemoryBroker(Random(1), Faults()), "scheduler")
    service = build(settings, Ports(store, bus, clock))
    epoch = (await store.lead()).epoch
    assert service.on_lead is not None
    await service.on_lead(epoch)
    step = service.loops[0].step
    async with store.transaction(epoch=epoch) as tx:
        for event in (
            *(node_changed(node) for node in some_nodes(1)),
            inventory_of(*some_nodes(1)),
            submitted_event(a_task()),
        ):
            await service.handlers[type(event)](tx, event)
    other = await connect(Address(role.url, role.password))
    await other.execute("BEGIN; LOCK TABLE scheduler.decision IN ACCESS EXCLUSIVE MODE")
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await step(epoch)
    await other.execute("ROLLBACK")
    await other.close()
    async with asyncio.timeout(10):
        await step(epoch)
    async with store.transaction() as tx:
        task = await tx.get(Task, "t1")
    assert task is not None
    assert task.state is TaskState.STARTING
    await store.close()
