"""Housekeeping bounds the tables; a new read model asks the owners for their facts."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from libs.bus.memory_broker import Faults
from libs.contracts import messages as m
from libs.service.prune import Pruning
from services.gateway.loop import OWNERS, Housekeeping
from services.gateway.rows import (
    AcceptedRow,
    AuditRow,
    EventHeadRow,
    EventRow,
    MetricsRow,
    RebuildRow,
    RunRow,
    TaskRow,
)
from services.gateway.store import old_rows
from services.gateway.tables import TABLES
from tests.services.gateway.world import World, a_node, assigned, state, until


async def test_each_owner_is_asked_once(world: World) -> None:
    await until(lambda: len(world.database.rows(TABLES, RebuildRow)) == len(OWNERS))
    asked = [each.service for each in world.others.asked if isinstance(each, m.Reemit)]
    assert sorted(asked) == ["launcher", "scheduler"]  # submit and quota are the real ones


@pytest.mark.parametrize(
    "world", [{"events_kept_max": 1000, "housekeeping_rows_max": 300}], indirect=True
)
async def test_old_events_go_a_page_at_a_time(world: World) -> None:
    store = world.gateway.ports.store
    await world.heard(a_node("n0"))
    table = world.database.schema("gateway").table(TABLES.shape(EventRow)).rows
    first = table[1]
    table.update({n: replace(first, position=n, fact=str(n)) for n in range(2, 1501)})
    async with store.transaction(epoch=1) as tx:
        tx.put(EventHeadRow("log", 1500, 1))
    step = Housekeeping(store, world.settings).step
    again = [await step(1) for _ in range(3)]
    assert again == [0.0, None, None]
    kept = sorted(world.database.rows(TABLES, EventRow))
    assert (kept[0], kept[-1], len(kept)) == (501, 1500, 1000)
    await world.heard(a_node("n1"))
    assert max(world.database.rows(TABLES, EventRow)) == 1501


@pytest.mark.parametrize("world", [{"prune_days_per_hour": 0}], indirect=True)
async def test_old_audit_and_settled_rows_go(
    world: World, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    task = await world.submitted(ann)
    world.broker.faults = Faults(lose_delivery=1.0)
    waiting = (await ann.post("/v1/tasks", json={"command": ["x"]})).json()
    store = world.gateway.ports.store
    async with store.transaction() as tx:
        row = await tx.get(AcceptedRow, waiting["id"])
        assert row is not None
        # Left over by a POST that ended after its event was projected.
        tx.put(replace(row, task_id=task["id"]))
    assert len((await ann.get("/v1/tasks")).json()["items"]) == 2
    world.clock.advance(world.settings.accepted_keep_seconds + 60)
    await Housekeeping(store, world.settings).step(1)
    # What is projected needs no stand-in; what is not stays, however old.
    assert set(world.database.rows(TABLES, AcceptedRow)) == {waiting["id"]}
    assert world.database.rows(TABLES, AuditRow)
    world.clock.advance(world.settings.audit_keep_seconds + 60)
    prune = Pruning("gateway", store, world.settings, old_rows(world.settings))
    await prune.step(1)
    assert not world.database.rows(TABLES, AuditRow)


@pytest.mark.parametrize("world", [{"prune_days_per_hour": 0}], indirect=True)
async def test_ended_tasks_go_with_their_runs_and_metrics(
    world: World, ann: httpx.AsyncClient
) -> None:
    over, live = await world.submitted(ann), await world.submitted(ann)
    for task in (over, live):
        await world.heard(assigned(task["id"]))
    store = world.gateway.ports.store
    await world.heard(state(over["id"], m.TaskState.SUCCEEDED, 9, finished_at=world.clock.now()))
    async with store.transaction() as tx:
        for task in (over, live):
            for rank in range(150):
                row = MetricsRow(task["id"], rank, 1, world.clock.now(), {}, [], 1, 0)
                tx.put(row)
    world.clock.advance(world.settings.tasks_keep_seconds + 60)
    prune = Pruning("gateway", store, world.settings, old_rows(world.settings))
    # Metrics go a hundred at a time.
    assert await prune.step(1) == 0.0
    assert await prune.step(1) is None
    assert set(world.database.rows(TABLES, TaskRow)) == {live["id"]}
    assert {row.task_id for row in world.database.rows(TABLES, RunRow).values()} == {live["id"]}
    metrics = world.database.rows(TABLES, MetricsRow).values()
    assert [row.task_id for row in metrics] == [live["id"]] * 150
