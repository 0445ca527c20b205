from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from libs.contracts.base import Message
from libs.contracts.messages import (
    ExitKind,
    Placement,
    Priority,
    Quota,
    QuotaChanged,
    Reason,
    Reemit,
    RefusalCode,
    RunExit,
    RunExited,
    RunStarted,
    SetQuota,
    TaskState,
    TaskStateChanged,
    Unit,
    UsageRecorded,
)
from services.quota.store import QuotaRow, RunRow, TaskRow, prune_rules
from tests.services.quota.world import World, at

GANG = (
    Placement(rank=0, node_id="n1", gpus=(0, 1)),
    Placement(rank=1, node_id="n2", gpus=(0, 1)),
)


def a_limit(limit: int = 8, unit: Unit = Unit.GPUS, **changes: Any) -> Quota:
    return Quota(**({"group": "train", "user": "ann", "unit": unit, "limit": limit} | changes))


async def set_limit(world: World, quota: Quota, *, unlimited: bool = False) -> int:
    command = SetQuota(quota=quota, unlimited=unlimited, asked_by="root")
    reply = await world.ask(command)
    assert reply.refusal is None, reply.refusal
    return reply.version


async def test_a_limit_is_stored_and_published(world: World) -> None:
    assert await set_limit(world, a_limit()) == 1
    assert await world.said() == [
        QuotaChanged(
            group_token="train",
            quota=a_limit(),
            version=1,
            changed_by="root",
            changed_at=world.clock.now(),
        )
    ]


async def test_the_same_limit_again_changes_nothing(world: World) -> None:
    first = await set_limit(world, a_limit())
    await world.said()
    assert await set_limit(world, a_limit()) == first
    assert await world.said() == []
    assert await set_limit(world, a_limit(9)) == first + 1
    assert len(await world.rows(QuotaRow)) == 1


async def test_versions_count_the_changes_of_all_limits(world: World) -> None:
    versions = [
        await set_limit(world, a_limit()),
        await set_limit(world, a_limit(user="bob")),
        await set_limit(world, a_limit(priority=Priority.LOW)),
        await set_limit(world, a_limit(9)),
    ]
    assert versions == [1, 2, 3, 4]


async def test_unlimited_removes_the_limit(world: World) -> None:
    await set_limit(world, a_limit())
    await world.said()
    gone = Quota(group="train", user="ann")
    assert await set_limit(world, gone, unlimited=True) == 2
    (event,) = await world.said()
    assert (event.removed, event.version, event.quota) == (True, 2, a_limit())
    assert await set_limit(world, gone, unlimited=True) == 2
    assert await set_limit(world, Quota(), unlimited=True) == 0
    assert await world.said() == []
    assert await set_limit(world, a_limit()) == 3


async def test_a_scope_has_one_limit_in_one_unit(world: World) -> None:
    await set_limit(world, a_limit(8))
    await world.said()
    await set_limit(world, a_limit(2, Unit.NODES))
    removed, added = await world.said()
    assert (removed.removed, removed.quota, removed.version) == (True, a_limit(8), 2)
    assert (added.removed, added.quota, added.version) == (False, a_limit(2, Unit.NODES), 3)
    (row,) = await world.rows(QuotaRow)
    assert (row.unit, row.limit, row.removed) == (Unit.NODES, 2, False)


async def test_a_bad_limit_leaves_nothing(world: World) -> None:
    reply = await world.ask(SetQuota(quota=a_limit(-1)))
    assert reply.refusal.code is RefusalCode.INVALID
    assert await world.rows(QuotaRow) == []
    assert await world.said() == []


def started(attempt: int = 1, seconds: float = 10.0) -> RunStarted:
    return RunStarted(task_id="t1", attempt=attempt, started_at=at(seconds), placements=GANG)


def exited(attempt: int = 1, seconds: float = 40.0) -> RunExited:
    ended = RunExit(attempt=attempt, kind=ExitKind.OK, exited_at=at(seconds))
    return RunExited(task_id="t1", attempt=attempt, exit=ended, placements=GANG)


def owned(version: int = 1) -> TaskStateChanged:
    return TaskStateChanged(
        task_id="t1",
        version=version,
        state=TaskState.RUNNING,
        reason=Reason(),
        changed_at=at(10),
        owner="ann",
        team="red",
        group="train",
    )


ENTRY = UsageRecorded(
    group="train",
    task_id="t1",
    attempt=1,
    owner="ann",
    team="red",
    gpus=4,
    nodes=2,
    started_at=at(10),
    ended_at=at(40),
    gpu_seconds=120.0,
    node_seconds=60.0,
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_use_is_entered_once_in_any_order_with_repetitions(
    world: World, order: tuple[int, ...]
) -> None:
    events: list[Message] = [owned(), started(), exited()]
    for index in order:
        await world.tell(events[index], events[index])
    assert await world.said() == [ENTRY]
    await world.tell(*events, exited(seconds=99.0), started(seconds=1.0), owned(version=2))
    assert await world.said() == []
    (row,) = await world.rows(RunRow)
    assert (row.recorded, row.ended_at) == (True, at(40))


async def test_each_attempt_has_its_entry(world: World) -> None:
    await world.tell(owned(), started(1, 0), exited(1, 5), started(2, 10), exited(2, 20))
    assert [(entry.attempt, entry.gpu_seconds) for entry in await world.said()] == [
        (1, 20.0),
        (2, 40.0),
    ]


async def test_a_run_that_never_started_used_nothing(world: World) -> None:
    await world.tell(owned(), exited())
    assert await world.said() == []
    await world.tell(started())
    assert await world.said() == [ENTRY]


async def test_reemit_publishes_limits_and_use_again(world: World) -> None:
    await set_limit(world, a_limit())
    await set_limit(world, a_limit(user="bob"))
    await set_limit(world, Quota(group="train", user="ann"), unlimited=True)
    await world.tell(owned(), started(), exited(), started(2))
    await world.said()
    assert (await world.ask(Reemit(service="quota"))).events == 3
    again = await world.said()
    assert [(event.version, event.removed) for event in again[:2]] == [(2, False), (3, True)]
    assert again[2] == ENTRY


async def test_the_ledger_forgets_by_age_and_a_task_with_its_last_run(world: World) -> None:
    await world.tell(owned(), started(1, 0), exited(1, 5), started(2, 10))
    other = owned().model_copy(update={"task_id": "t2"})
    await world.tell(other, exited(1, 5).model_copy(update={"task_id": "t2"}))
    old, _ = prune_rules(timedelta(days=1))
    async with world.store.transaction() as tx:
        assert await old.oldest(tx) == at(5)
        assert await old.drop(tx, at(6), 10) == 2
    assert [(row.task_id, row.attempt) for row in await world.rows(RunRow)] == [("t1", 2)]
    assert [row.task_id for row in await world.rows(TaskRow)] == ["t1"]
    await world.said()
    await world.tell(exited(2, 20))
    assert [entry.gpu_seconds for entry in await world.said()] == [40.0]


async def test_tasks_that_never_ran_are_forgotten_by_age(world: World) -> None:
    for task_id in ("ran", "waits"):
        await world.tell(owned().model_copy(update={"task_id": task_id}))
    await world.tell(started().model_copy(update={"task_id": "ran"}))
    world.clock.advance(100)
    await world.tell(owned().model_copy(update={"task_id": "young"}))
    runs, tasks = prune_rules(timedelta(days=1))
    async with world.store.transaction() as tx:
        oldest = await tasks.oldest(tx)
        assert oldest is not None
        before = oldest + timedelta(seconds=50)
        assert await tasks.drop(tx, before, 10) == 2
        # Each is looked at once.
        assert await tasks.drop(tx, before, 10) == 0
        assert await tasks.oldest(tx) == oldest + timedelta(seconds=100)
    assert sorted(row.task_id for row in await world.rows(TaskRow)) == ["ran", "young"]
    # The ledger is right for both: one was kept, the other is heard of again with its run.
    await world.tell(exited(1, 10).model_copy(update={"task_id": "ran"}))
    for event in (owned(), started(1, 20), exited(1, 30)):
        await world.tell(event.model_copy(update={"task_id": "waits"}))
    assert [entry.task_id for entry in await world.said()] == ["ran", "waits"]
    async with world.store.transaction() as tx:
        assert await runs.drop(tx, at(60), 10) == 2
    assert [row.task_id for row in await world.rows(TaskRow)] == ["young"]
