"""The scheduler's rows in both stores: what is written comes back, and what must not be, cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from libs.contracts.ids import NodeId, TaskId
from libs.contracts.messages import (
    ExitKind,
    Priority,
    Quota,
    QuotaChanged,
    ReasonCode,
    TaskState,
    TaskStateChanged,
    Unit,
)
from libs.service.prune import PruneRule
from libs.store.port import ConflictError, Store
from services.scheduler import store
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import EarlyFacts, Inventory, Limit, Node, Task
from services.scheduler.loop import Brain
from services.scheduler.main import WIRING
from services.scheduler.settings import SchedulerSettings
from services.scheduler.store import DecisionRow, EndedTask, SlotRow
from tests.kit.builders import (
    a_checkpoint,
    a_limit,
    a_node,
    a_snapshot,
    a_task,
    exited_event,
    preempting,
    running,
    some_nodes,
)
from tests.kit.clock import at
from tests.services.scheduler.scheduler_harness import SchedulerHarness, node_changed

if TYPE_CHECKING:
    from libs.service.wiring import Wiring


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
def kept(store: Store) -> Store:
    return store


async def test_rows_come_back_as_they_were(kept: Store) -> None:
    task = replace(
        preempting(a_task("full", gpus=2), {"n0": (0, 1)}),
        checkpoint=a_checkpoint(4),
        exit=exited_event(a_task(), ExitKind.FAILED, attempt=1).exit,
        end_reason=a_task().reason,
        not_before_at=at(5),
    )
    rows = (
        a_task("bare"),
        task,
        a_node(unusable=(1, 2), cpus=3.5),
        a_limit(8, user="ann", priority=Priority.HIGH),
        Inventory("process", ("n0", "n1"), at(1)),
        EarlyFacts(task.id, goal_revision=2),
        SlotRow("full", 1, "n0", 0),
    )
    async with kept.transaction() as tx:
        tx.put(*rows)
    async with kept.transaction() as tx:
        assert await tx.get(Task, "full") == task
        assert await tx.get(Task, "bare") == rows[0]
        assert await tx.select(Node) == [rows[2]]
        assert await tx.get(Limit, "", "ann", "", Priority.HIGH, False) == rows[3]
        assert await tx.select(Inventory) == [rows[4]]
        assert await tx.select(EarlyFacts) == [rows[5]]
        assert await tx.select(SlotRow) == [rows[6]]


async def test_the_database_refuses_a_gpu_with_two_owners(kept: Store) -> None:
    async with kept.transaction() as tx:
        tx.put(SlotRow("one", 1, "n0", 3))
    with pytest.raises(ConflictError):
        async with kept.transaction() as tx:
            tx.put(SlotRow("two", 1, "n0", 3))
    async with kept.transaction() as tx:
        assert await tx.select(SlotRow) == [SlotRow("one", 1, "n0", 3)]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(running(a_task(), {"n0": (0,)}), attempt=7),
        replace(running(a_task(), {"n0": (0,)}), live_attempt=None),
        replace(a_task(), attempt=1, live_attempt=1),
    ],
)
async def test_the_database_refuses_an_impossible_state_of_a_task(kept: Store, wrong: Task) -> None:
    with pytest.raises(ConflictError):
        async with kept.transaction() as tx:
            tx.put(wrong)


async def committed(kept: Store, epoch: int, *tasks: Task, nodes: int = 2) -> Index:
    """Decide once on these tasks and commit the plan."""
    async with kept.transaction(epoch=epoch) as tx:
        tx.put(*tasks, *some_nodes(nodes), Inventory("process", (), at(0)))
    index, _ = await store.load(kept, PolicySettings())
    plan = decide(Snapshot.view(index, 1), at(1))
    async with kept.transaction(epoch=epoch) as tx:
        await store.commit(tx, plan, version=1)
    return index


async def test_a_plan_is_committed_with_slots_history_and_messages(kept: Store) -> None:
    epoch = (await kept.lead()).epoch
    await committed(kept, epoch, a_task("a", gpus=2), a_task("b", gpus=0, submitted=1))
    async with kept.transaction(epoch=epoch) as tx:
        assert [(slot.task_id, slot.gpu) for slot in await tx.select(SlotRow)] == [
            ("a", 0),
            ("a", 1),
        ]
        rows = sorted(await tx.select(DecisionRow), key=lambda row: row.task_id)
        assert [(row.task_id, row.kind, row.attempt) for row in rows] == [
            ("a", "assign", 1),
            ("b", "assign", 1),
        ]
        assert await store.decisions_of(tx, "a", after=rows[0].no, limit=5) == []
        assert await store.decisions_of(tx, "b", after=0, limit=5) == [rows[1]]
    sent = [type(envelope.message).__name__ for _, envelope in await kept.outgoing(10)]
    assert sent == ["RunAssigned", "TaskStateChanged"] * 2


async def test_an_exit_gives_the_slots_back_and_an_end_keeps_the_last_event(kept: Store) -> None:
    epoch = (await kept.lead()).epoch
    await committed(kept, epoch, a_task("a"), nodes=1)
    async with kept.transaction(epoch=epoch) as tx:
        task = await tx.get(Task, "a")
        assert task is not None
        assert len(await tx.select(SlotRow)) == 8
        outcome = observations.on_run_exited(
            task, exited_event(task, now=9), at(9), PolicySettings()
        )
        assert isinstance(outcome, Change)
        store.put_change(tx, task, outcome)
    async with kept.transaction(epoch=epoch) as tx:
        assert await tx.select(SlotRow) == []
        assert await tx.get(Task, "a") is None
        over = await store.ended(tx, "a")
        assert over is not None
        assert over.last.state is TaskState.SUCCEEDED
        assert over.last.finished_at == at(9)
        assert await store.ended_newest(tx, 5) == [over]
    published = [envelope.message for _, envelope in await kept.outgoing(10)][-1]
    assert isinstance(published, TaskStateChanged)
    assert published == over.last


async def test_a_stale_plan_is_not_committed(kept: Store) -> None:
    epoch = (await kept.lead()).epoch
    plan = decide(a_snapshot([a_task("a")], some_nodes(1), version=4), at(1))
    with pytest.raises(store.StalePlanError):
        async with kept.transaction(epoch=epoch) as tx:
            await store.commit(tx, plan, version=5)
    with pytest.raises(store.StalePlanError):
        async with kept.transaction(epoch=epoch) as tx:
            await store.commit(tx, plan, version=4)
    assert await kept.outgoing(10) == []


async def test_old_decisions_are_dropped_a_page_at_a_time(kept: Store) -> None:
    async with kept.transaction() as tx:
        for number in range(5):
            decided_at = at(number * 10 - 100)
            tx.put(DecisionRow(number, "a", 1, "hold", a_task().reason, decided_at))
    decisions = named(OLD, "decisions")
    async with kept.transaction() as tx:
        assert await decisions.drop(tx, at(-75), 2) == 2
    async with kept.transaction() as tx:
        assert await decisions.drop(tx, at(-75), 2) == 1
        assert [row.no for row in await tx.select(DecisionRow)] == [3, 4]


async def test_a_removed_node_leaves_memory_with_its_row() -> None:
    scheduler = await SchedulerHarness(
        prune_days_per_hour=0, removed_node_keep_seconds=100.0
    ).start()
    await scheduler.handle(node_changed(a_node("n0")), node_changed(a_node("n1", group="other")))
    gone = node_changed(a_node("n1", group="other", version=2, removed=True))
    await scheduler.handle(gone)
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert isinstance(brain, Brain)
    assert set(brain.index.nodes) == {"n0", "n1"}
    assert brain.snapshot().totals.emptied == {"other"}
    prune = next(loop for loop in scheduler.service.loops if loop.name == "prune")
    scheduler.clock.move_to(101)
    await prune.step(scheduler.epoch)
    assert set(brain.index.nodes) == {"n0"}
    assert brain.snapshot().totals.emptied == set()
    loaded, _ = await store.load(scheduler.store, scheduler.settings.policy())
    assert loaded.nodes == brain.index.nodes


async def test_removed_nodes_and_facts_of_tasks_that_never_came_are_dropped_by_age(
    kept: Store,
) -> None:
    """Nodes that are there and rows of unknown age stay."""
    epoch = (await kept.lead()).epoch
    there, *_ = some_nodes(1)
    gone = replace(there, id=NodeId("gone"), removed=True, changed_at=at(0))
    async with kept.transaction(epoch=epoch) as tx:
        tx.put(replace(there, changed_at=at(-100)), gone)
        tx.put(replace(gone, id=NodeId("just"), changed_at=at(60)))
        tx.put(replace(gone, id=NodeId("unknown"), changed_at=None))
        tx.put(
            EarlyFacts(TaskId("old"), first_at=at(0)), EarlyFacts(TaskId("new"), first_at=at(60))
        )
    await store.load(kept, PolicySettings())
    for what in ("removed nodes", "early facts"):
        old = named(OLD, what)
        async with kept.transaction(epoch=epoch) as tx:
            assert await old.oldest(tx) == at(0)
            assert await old.drop(tx, at(50), 10) == 1
    async with kept.transaction(epoch=epoch) as tx:
        assert {row.id for row in await tx.select(Node)} == {there.id, "just", "unknown"}
        assert [row.task_id for row in await tx.select(EarlyFacts)] == ["new"]


OLD = store.prune_rules(SchedulerSettings(database_url="-", nats_url="-"))


def named(old: Sequence[PruneRule], what: str) -> PruneRule:
    (found,) = (each for each in old if each.what == what)
    return found


async def test_the_loaded_index_equals_the_one_before_the_restart(kept: Store) -> None:
    epoch = (await kept.lead()).epoch
    await committed(kept, epoch, a_task("a"), a_task("b", submitted=1), nodes=1)
    index, _ = await store.load(kept, PolicySettings())
    snapshot = Snapshot.view(index, 1)
    assert list(snapshot.held) == ["a"]
    assert [task_id for _, (_, task_id) in snapshot.pools["default"].queues] == ["b"]
    assert snapshot.tasks["b"].reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert snapshot.tasks["b"].marks.policy == "timeshare"
    assert snapshot.index.ledgers["default"].sampled_at == at(1)
    assert snapshot.inventory_listed


def test_ended_rows_are_not_in_the_working_set() -> None:
    assert EndedTask not in store._RESIDENT
    assert DecisionRow not in store._RESIDENT


async def test_a_removed_quota_leaves_memory_by_age_and_a_live_one_never() -> None:
    def changed(user: str, version: int, *, removed: bool = False) -> QuotaChanged:
        quota = Quota(group="default", user=user, unit=Unit.GPUS, limit=8)
        return QuotaChanged(
            group_token="default", quota=quota, version=version, removed=removed, changed_at=at(0)
        )

    scheduler = await SchedulerHarness(
        prune_days_per_hour=0, removed_quota_keep_seconds=100.0
    ).start()
    await scheduler.handle(changed("ann", 1), changed("bob", 2))
    await scheduler.handle(changed("ann", 3, removed=True))
    brain = scheduler.service.loops[0].step.__self__  # type: ignore[attr-defined]
    assert isinstance(brain, Brain)
    brain.snapshot()
    prune = next(loop for loop in scheduler.service.loops if loop.name == "prune")
    for moment, users in ((99, ["ann", "bob"]), (101, ["bob"]), (10_000, ["bob"])):
        scheduler.clock.move_to(moment)
        await prune.step(scheduler.epoch)
        assert sorted(user for _, user, *_ in brain.index.limits) == users
    loaded, _ = await store.load(scheduler.store, scheduler.settings.policy())
    assert loaded.limits == brain.index.limits
