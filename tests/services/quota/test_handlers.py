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
from services.quota.domain import OTHERS_SHOWN_MAX
from services.quota.handlers import expire
from services.quota.store import QuotaRow, RunRow, TaskRow, prune_rules
from tests.kit.clock import at
from tests.kit.service import ServiceHarness

GANG = (
    Placement(rank=0, node_id="n1", gpus=(0, 1)),
    Placement(rank=1, node_id="n2", gpus=(0, 1)),
)


def a_limit(limit: int = 8, unit: Unit = Unit.GPUS, **changes: Any) -> Quota:
    return Quota(**({"group": "train", "user": "ann", "unit": unit, "limit": limit} | changes))


async def set_limit(service: ServiceHarness, quota: Quota, *, remove: bool = False) -> int:
    command = SetQuota(quota=quota, remove=remove, asked_by="root")
    reply = await service.ask(command)
    assert reply.refusal is None, reply.refusal
    return reply.version


async def test_a_limit_is_stored_and_published(service: ServiceHarness) -> None:
    assert await set_limit(service, a_limit()) == 1
    assert await service.published() == [
        QuotaChanged(
            group_token="train",
            quota=a_limit(),
            version=1,
            changed_by="root",
            changed_at=service.clock.now(),
        )
    ]


async def test_the_same_limit_again_changes_nothing(service: ServiceHarness) -> None:
    first = await set_limit(service, a_limit())
    await service.published()
    assert await set_limit(service, a_limit()) == first
    assert await service.published() == []
    assert await set_limit(service, a_limit(9)) == first + 1
    assert len(await service.rows(QuotaRow)) == 1


async def test_versions_count_the_changes_of_all_limits(service: ServiceHarness) -> None:
    versions = [
        await set_limit(service, a_limit()),
        await set_limit(service, a_limit(user="bob")),
        await set_limit(service, a_limit(priority=Priority.LOW)),
        await set_limit(service, a_limit(9)),
    ]
    assert versions == [1, 2, 3, 4]


async def test_a_limit_is_removed(service: ServiceHarness) -> None:
    await set_limit(service, a_limit())
    await service.published()
    gone = Quota(group="train", user="ann")
    assert await set_limit(service, gone, remove=True) == 2
    (event,) = await service.published()
    assert (event.removed, event.version, event.quota) == (True, 2, a_limit())
    assert await set_limit(service, a_limit()) == 3


@pytest.mark.parametrize("how", ["unlimited", "remove"])
@pytest.mark.parametrize("subject", [{"user": "ann"}, {"user": "", "team": "vision"}, {"user": ""}])
async def test_a_row_that_is_not_there_cannot_be_removed(
    service: ServiceHarness, how: str, subject: dict[str, str]
) -> None:
    """The refusal has the whole command for each row of that user, that team, or of each user."""
    there = [
        a_limit(priority=Priority.HIGH, **subject),
        a_limit(4, grant=True, group="", priority=Priority.NORMAL, **subject),
    ]
    for row in (*there, a_limit(user="cat"), a_limit(group="lab", **subject)):
        await set_limit(service, row)
    # What was removed is not there either.
    await set_limit(service, a_limit(group="lab", **subject), remove=True)
    await service.published()
    for group in ("train", "lab"):
        gone = Quota(group=group, **subject)
        reply = await service.ask(SetQuota(quota=gone, asked_by="root", **{how: True}))
        assert reply.refusal.code is RefusalCode.NOT_FOUND
        (error,) = reply.refusal.errors
        named = " ".join(f"--{kind} {name}" for kind, name in subject.items() if name)
        named = f" {named}" if named else ""
        assert error.message.startswith("there is no cap of ")
        assert error.fix == (
            f"those that are there are removed with `shiftwork quota set{named} --priority high"
            " --group train --remove`,"
            f" `shiftwork quota set --grant{named} --priority normal --remove`"
        )
    assert await service.published() == []


async def test_without_rows_the_refusal_names_the_list(service: ServiceHarness) -> None:
    reply = await service.ask(SetQuota(quota=Quota(grant=True), remove=True, asked_by="root"))
    (error,) = reply.refusal.errors
    assert (error.field, error.message) == ("remove", "the site has no default")
    assert error.fix == "GET /v1/quotas lists all rows"


async def test_many_rows_are_not_all_named(service: ServiceHarness) -> None:
    for number in range(OTHERS_SHOWN_MAX + 5):
        await set_limit(service, a_limit(group=f"g{number}"))
    reply = await service.ask(SetQuota(quota=Quota(user="ann"), remove=True, asked_by="root"))
    fix = reply.refusal.errors[0].fix
    assert fix.count("--remove`") == OTHERS_SHOWN_MAX
    assert fix.endswith("; GET /v1/quotas lists all rows")


async def test_a_scope_has_one_limit_in_one_unit(service: ServiceHarness) -> None:
    await set_limit(service, a_limit(8))
    await service.published()
    await set_limit(service, a_limit(2, Unit.NODES))
    removed, added = await service.published()
    assert (removed.removed, removed.quota, removed.version) == (True, a_limit(8), 2)
    assert (added.removed, added.quota, added.version) == (False, a_limit(2, Unit.NODES), 3)
    (row,) = await service.rows(QuotaRow)
    assert (row.unit, row.limit, row.removed) == (Unit.NODES, 2, False)


async def test_a_bad_limit_leaves_nothing(service: ServiceHarness) -> None:
    reply = await service.ask(SetQuota(quota=a_limit(-1)))
    assert reply.refusal.code is RefusalCode.INVALID
    assert await service.rows(QuotaRow) == []
    assert await service.published() == []


async def test_one_name_may_have_a_cap_and_a_grant(service: ServiceHarness) -> None:
    await set_limit(service, a_limit(8))
    await set_limit(service, a_limit(4, grant=True))
    assert {(row.grant, row.limit) for row in await service.rows(QuotaRow)} == {
        (False, 8),
        (True, 4),
    }
    await service.published()
    gone = SetQuota(quota=a_limit(grant=True), remove=True, asked_by="eve")
    await service.ask(gone)
    (event,) = await service.published()
    assert (event.removed, event.quota, event.changed_by) == (True, a_limit(4, grant=True), "eve")


async def test_rows_are_removed_when_their_time_is_over(service: ServiceHarness) -> None:
    now = service.clock.now()
    soon, later = now + timedelta(seconds=10), now + timedelta(seconds=20)
    await set_limit(service, a_limit(4, grant=True, expires_at=soon))
    await set_limit(service, a_limit(8, user="bob", expires_at=later))
    await set_limit(service, a_limit(8, user="cat"))
    await service.published()
    async with service.store.transaction() as tx:
        assert await expire(tx) == 10.0
    assert await service.published() == []
    service.clock.advance(10)
    async with service.store.transaction() as tx:
        assert await expire(tx) == 10.0
    (event,) = await service.published()
    assert (event.removed, event.expired, event.quota.user) == (True, True, "ann")
    assert event.changed_by == "root"
    service.clock.advance(3600)
    async with service.store.transaction() as tx:
        assert await expire(tx) is None
    assert {row.user: row.removed for row in await service.rows(QuotaRow)} == {
        "ann": True,
        "bob": True,
        "cat": False,
    }


async def test_a_row_that_expired_may_be_set_again(service: ServiceHarness) -> None:
    soon = service.clock.now() + timedelta(seconds=10)
    await set_limit(service, a_limit(4, expires_at=soon))
    service.clock.advance(11)
    async with service.store.transaction() as tx:
        await expire(tx)
    await service.published()
    await set_limit(service, a_limit(4))
    (event,) = await service.published()
    assert (event.removed, event.expired, event.quota) == (False, False, a_limit(4))


async def test_another_end_is_a_change(service: ServiceHarness) -> None:
    first = await set_limit(service, a_limit(4))
    soon = service.clock.now() + timedelta(days=30)
    assert await set_limit(service, a_limit(4, expires_at=soon)) == first + 1
    assert await set_limit(service, a_limit(4, expires_at=soon)) == first + 1


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
    service: ServiceHarness, order: tuple[int, ...]
) -> None:
    events: list[Message] = [owned(), started(), exited()]
    for index in order:
        await service.handle(events[index], events[index])
    assert await service.published() == [ENTRY]
    await service.handle(*events, exited(seconds=99.0), started(seconds=1.0), owned(version=2))
    assert await service.published() == []
    (row,) = await service.rows(RunRow)
    assert (row.recorded, row.ended_at) == (True, at(40))


async def test_each_attempt_has_its_entry(service: ServiceHarness) -> None:
    await service.handle(owned(), started(1, 0), exited(1, 5), started(2, 10), exited(2, 20))
    assert [(entry.attempt, entry.gpu_seconds) for entry in await service.published()] == [
        (1, 20.0),
        (2, 40.0),
    ]


async def test_a_run_that_never_started_used_nothing(service: ServiceHarness) -> None:
    await service.handle(owned(), exited())
    assert await service.published() == []
    await service.handle(started())
    assert await service.published() == [ENTRY]


async def test_reemit_publishes_limits_and_use_again(service: ServiceHarness) -> None:
    await set_limit(service, a_limit())
    await set_limit(service, a_limit(user="bob"))
    await set_limit(service, Quota(group="train", user="ann"), remove=True)
    await service.handle(owned(), started(), exited(), started(2))
    await service.published()
    assert (await service.ask(Reemit(service="quota"))).events == 3
    again = await service.published()
    assert [(event.version, event.removed) for event in again[:2]] == [(2, False), (3, True)]
    assert again[2] == ENTRY


async def test_the_ledger_forgets_by_age_and_a_task_with_its_last_run(
    service: ServiceHarness,
) -> None:
    await service.handle(owned(), started(1, 0), exited(1, 5), started(2, 10))
    other = owned().model_copy(update={"task_id": "t2"})
    await service.handle(other, exited(1, 5).model_copy(update={"task_id": "t2"}))
    old, *_ = prune_rules(timedelta(days=1))
    async with service.store.transaction() as tx:
        assert await old.oldest(tx) == at(5)
        assert await old.drop(tx, at(6), 10) == 2
    assert [(row.task_id, row.attempt) for row in await service.rows(RunRow)] == [("t1", 2)]
    assert [row.task_id for row in await service.rows(TaskRow)] == ["t1"]
    await service.published()
    await service.handle(exited(2, 20))
    assert [entry.gpu_seconds for entry in await service.published()] == [40.0]


async def test_tasks_that_never_ran_are_forgotten_by_age(service: ServiceHarness) -> None:
    for task_id in ("ran", "waits"):
        await service.handle(owned().model_copy(update={"task_id": task_id}))
    await service.handle(started().model_copy(update={"task_id": "ran"}))
    service.clock.advance(100)
    await service.handle(owned().model_copy(update={"task_id": "young"}))
    runs, tasks, _ = prune_rules(timedelta(days=1))
    async with service.store.transaction() as tx:
        oldest = await tasks.oldest(tx)
        assert oldest is not None
        before = oldest + timedelta(seconds=50)
        assert await tasks.drop(tx, before, 10) == 2
        # Each is evaluated once.
        assert await tasks.drop(tx, before, 10) == 0
        assert await tasks.oldest(tx) == oldest + timedelta(seconds=100)
    assert sorted(row.task_id for row in await service.rows(TaskRow)) == ["ran", "young"]
    # The ledger is right for both: one was kept, the other arrives again with its run.
    await service.handle(exited(1, 10).model_copy(update={"task_id": "ran"}))
    for event in (owned(), started(1, 20), exited(1, 30)):
        await service.handle(event.model_copy(update={"task_id": "waits"}))
    assert [entry.task_id for entry in await service.published()] == ["ran", "waits"]
    async with service.store.transaction() as tx:
        assert await runs.drop(tx, at(60), 10) == 2
    assert [row.task_id for row in await service.rows(TaskRow)] == ["young"]
