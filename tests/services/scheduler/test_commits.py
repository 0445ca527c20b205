"""A commit that fails, takes too long or takes effect without an answer is not forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from libs.contracts.messages import (
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    Priority,
    RunAssigned,
    TaskState,
)
from libs.store.connections import connect
from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError
from services.scheduler.domain.disciplines.timeshare.discipline import features_of
from services.scheduler.loop import Brain
from services.scheduler.main import WIRING
from services.scheduler.store import PoolMemory
from services.scheduler.tables import TABLES
from tests.kit.builders import a_task, exited_event, some_nodes, started_event, submitted_event
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.stores import migrated
from tests.services.scheduler.scheduler_harness import SchedulerHarness

if TYPE_CHECKING:
    from tests.kit.postgres import Database

# Nothing is stored; or everything is stored, but the caller gets an error.
FAILURES = (Point.BEFORE_COMMIT, Point.AFTER_COMMIT)


class Trouble:
    """``times`` commits fail at a point, then the database works again."""

    def __init__(self, point: Point, times: int) -> None:
        self.point = point
        self.left = times

    async def __call__(self, point: Point, schema: str) -> None:
        del schema
        if point is self.point and self.left:
            self.left -= 1
            raise StoreUnavailableError("canceling statement due to statement timeout")


async def a_scheduler(nodes: int = 1) -> SchedulerHarness:
    return await SchedulerHarness().start(*some_nodes(nodes))


async def steps(scheduler: SchedulerHarness, number: int = 4) -> None:
    """Step as the loop does: wait for a server that is down."""
    for _ in range(number):
        try:
            await scheduler.step()
        except StoreUnavailableError:
            continue


def brain_of(scheduler: SchedulerHarness) -> Brain:
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert isinstance(brain, Brain)
    return brain


async def equals_the_rows(scheduler: SchedulerHarness) -> bool:
    return dict(brain_of(scheduler).snapshot().tasks) == await scheduler.tasks()


@pytest.mark.parametrize("point", FAILURES)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_start_whose_commit_failed_is_decided_again(point: Point, times: int) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()))
    scheduler.platform.database.fault = Trouble(point, times)
    await steps(scheduler)
    assert (await scheduler.task("t1")).state is TaskState.STARTING
    published = [each for each in await scheduler.published() if isinstance(each, RunAssigned)]
    assert [each.attempt for each in published] == [1]
    assert await equals_the_rows(scheduler)


@pytest.mark.parametrize("point", FAILURES)
async def test_a_kill_at_a_deadline_whose_commit_failed_is_decided_again(point: Point) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task("low", priority=Priority.LOW)))
    await scheduler.settle()
    await scheduler.handle(started_event(await scheduler.task("low")))
    await scheduler.handle(submitted_event(a_task("high", priority=Priority.HIGH, submitted=1)))
    await scheduler.settle()
    await scheduler.published()
    scheduler.clock.move_to(60)
    scheduler.platform.database.fault = Trouble(point, 1)
    await steps(scheduler)
    published = [each for each in await scheduler.published() if isinstance(each, KillRequested)]
    assert [each.task_id for each in published] == ["low"]
    assert (await scheduler.task("low")).state is TaskState.KILLING
    assert await equals_the_rows(scheduler)


@pytest.mark.parametrize("point", FAILURES)
async def test_a_stop_whose_commit_failed_is_decided_again(point: Point) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()), submitted_event(a_task("t2", submitted=1)))
    await scheduler.settle()
    goal = GoalChanged(task_id="t2", goal=Goal.PAUSE, revision=2, changed_at=at(1))
    await scheduler.handle(goal)
    scheduler.platform.database.fault = Trouble(point, 1)
    await steps(scheduler)
    assert (await scheduler.task("t2")).state is TaskState.PAUSED
    assert await equals_the_rows(scheduler)


@pytest.mark.parametrize("point", FAILURES)
async def test_nothing_is_decided_on_memory_that_may_differ_from_the_rows(point: Point) -> None:
    """The database stays away for a while: the failed plan is neither assumed nor lost."""
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()))
    scheduler.platform.database.fault = Trouble(point, 1)
    with pytest.raises(StoreUnavailableError):
        await scheduler.step()
    scheduler.platform.database.fault = Trouble(Point.BEGIN, 3)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await scheduler.step()
    await steps(scheduler)
    assert (await scheduler.task("t1")).state is TaskState.STARTING
    await scheduler.handle(started_event(await scheduler.task("t1")))
    await scheduler.handle(exited_event(await scheduler.task("t1"), ExitKind.OK))
    await scheduler.settle()
    assert await scheduler.tasks() == {}
    assert await equals_the_rows(scheduler)


@pytest.mark.parametrize("point", FAILURES)
async def test_what_was_learned_is_saved_again_if_its_commit_failed(point: Point) -> None:
    scheduler = await a_scheduler()
    await scheduler.handle(submitted_event(a_task()))
    await scheduler.settle()
    pool = brain_of(scheduler).snapshot().pools["default"]
    pool.history.ended(features_of(pool, await scheduler.task("t1")), 700.0)
    learn = next(loop for loop in scheduler.service.loops if loop.name == "learn")
    scheduler.platform.database.fault = Trouble(point, 1)
    with pytest.raises(StoreUnavailableError):
        await learn.step(scheduler.epoch)
    for _ in range(2):
        try:
            await learn.step(scheduler.epoch)
        except StoreUnavailableError:
            # The transaction before did take effect.
            continue
    async with scheduler.store.transaction() as tx:
        memory = await tx.get(PoolMemory, "default")
    assert memory is not None
    assert memory.learned["ends"] == 1


@pytest.mark.server
async def test_a_lock_on_one_table_delays_a_start_and_does_not_lose_it(database: Database) -> None:
    """PostgreSQL's own time-out ends the commit while another session locks the decisions."""
    address = await migrated(database, WIRING)
    platform = MemoryPlatform()
    store = platform.sql_store(replace(address, statement_timeout_s=0.3), TABLES)
    scheduler = await SchedulerHarness(platform=platform, store=store).start(*some_nodes(1))
    await scheduler.handle(submitted_event(a_task()))
    other = await connect(address)
    await other.execute("BEGIN; LOCK TABLE scheduler.decision IN ACCESS EXCLUSIVE MODE")
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await scheduler.step()
    await other.execute("ROLLBACK")
    await other.close()
    async with asyncio.timeout(10):
        await scheduler.step()
    assert (await scheduler.task("t1")).state is TaskState.STARTING
    await store.close()
