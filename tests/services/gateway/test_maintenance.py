"""Housekeeping bounds the tables; a new read model requests the events of the owners."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

import httpx
import pytest
from prometheus_client import REGISTRY

from libs.bus.memory_broker import Faults
from libs.contracts import messages as m
from libs.service.prune import Pruning
from services.gateway.conversion import quota_row
from services.gateway.maintenance import OWNERS, HistoryPruning
from services.gateway.reports import progress, tail_of
from services.gateway.rows import (
    AcceptedRow,
    AuditRow,
    EventHeadRow,
    EventRow,
    MetricsRow,
    MetricTailRow,
    NodeRow,
    ProgressRow,
    QuotaRow,
    RebuildRow,
    RunRow,
    TaskRow,
)
from services.gateway.store import drop_old_events, drop_settled, prune_rules
from services.gateway.tables import TABLES
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, a_node, assigned, state


async def test_metrics_that_alerts_read_begin_at_zero(harness: GatewayHarness) -> None:
    """An alert compares a counter with its earlier value, so each counter must start at zero."""
    for name, labels in (
        ("shiftwork_terms_failed_total", {}),
        ("shiftwork_prunes_failed_total", {"what": "audit"}),
    ):
        value = REGISTRY.get_sample_value(name, {"service": "gateway", **labels})
        assert value is not None, name


async def test_each_owner_gets_one_reemit_request(harness: GatewayHarness) -> None:
    await until(lambda: len(harness.database.rows(TABLES, RebuildRow)) == len(OWNERS))
    requested = [each.service for each in harness.others.asked if isinstance(each, m.Reemit)]
    assert sorted(requested) == ["launcher", "scheduler"]  # the real submit and quota reply


@pytest.mark.parametrize(
    "harness", [{"events_kept_max": 1000, "prune_rows_max": 300}], indirect=True
)
async def test_old_events_are_deleted_a_page_at_a_time(harness: GatewayHarness) -> None:
    store = harness.gateway.ports.store
    await harness.project(a_node("n0"))
    table = harness.database.schema("gateway").table(TABLES.shape(EventRow)).rows
    first = table[1]
    table.update({n: replace(first, position=n, fact=str(n)) for n in range(2, 1501)})
    async with store.transaction(epoch=1) as tx:
        tx.put(EventHeadRow("log", 1500, 1))
    step = HistoryPruning(store, harness.settings).step
    delays = [await step(1) for _ in range(3)]
    assert delays == [0.0, None, None]
    kept = sorted(harness.database.rows(TABLES, EventRow))
    assert (kept[0], kept[-1], len(kept)) == (501, 1500, 1000)
    await harness.project(a_node("n1"))
    assert max(harness.database.rows(TABLES, EventRow)) == 1501


@pytest.mark.parametrize(
    "harness", [{"events_bytes_max": 1_048_576, "prune_rows_max": 40}], indirect=True
)
async def test_the_event_log_is_bounded_in_bytes(harness: GatewayHarness) -> None:
    """The log keeps the newest megabyte of 4 MB in a hundred events."""
    store = harness.gateway.ports.store
    long = "x" * 40_000
    await harness.project(*(a_node(f"n{number}", gpu_model=long) for number in range(100)))
    step = HistoryPruning(store, harness.settings).step
    for _ in range(4):
        await step(1)
    kept = sorted(harness.database.rows(TABLES, EventRow))
    assert kept[-1] == 100
    assert 20 <= len(kept) <= 26
    assert await step(1) is None
    # One event that is larger than the whole log is kept, alone.
    await harness.project(a_node("large", gpu_model="x" * 2_000_000))
    await step(1)
    assert sorted(harness.database.rows(TABLES, EventRow)) == [101]


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
async def test_old_audit_rows_and_accepted_rows_of_projected_tasks_are_deleted(
    harness: GatewayHarness, ann: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    task = await harness.submitted(ann)
    harness.broker.faults = Faults(lose_delivery=1.0)
    waiting = (await ann.post("/v1/tasks", json={"command": ["x"]})).json()
    store = harness.gateway.ports.store
    async with store.transaction() as tx:
        row = await tx.get(AcceptedRow, waiting["id"])
        assert row is not None
        # A POST that ends after its event was projected leaves such a row.
        tx.put(replace(row, task_id=task["id"]))
    assert len((await ann.get("/v1/tasks")).json()["items"]) == 2
    harness.clock.advance(harness.settings.accepted_keep_seconds + 60)
    await HistoryPruning(store, harness.settings).step(1)
    # The accepted row of a projected task is deleted; any other one stays, whatever its age.
    assert set(harness.database.rows(TABLES, AcceptedRow)) == {waiting["id"]}
    assert harness.database.rows(TABLES, AuditRow)
    harness.clock.advance(harness.settings.audit_keep_seconds + 60)
    prune = Pruning("gateway", store, harness.settings, prune_rules(harness.settings))
    await prune.step(1)
    assert not harness.database.rows(TABLES, AuditRow)


@pytest.mark.parametrize("harness", [{"prune_rows_max": 2}], indirect=True)
async def test_accepted_tasks_that_wait_do_not_keep_settled_ones(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    """Three whose events never came, with the lowest ids, and one that is projected."""
    task = await harness.submitted(ann)
    store = harness.gateway.ports.store
    async with store.transaction() as tx:
        row = await tx.get(TaskRow, task["id"])
        values = {field.name: getattr(row, field.name) for field in fields(AcceptedRow)}
        settled = AcceptedRow(**values)
        tx.put(settled, *(replace(settled, task_id=f"0{number}") for number in range(3)))
    harness.clock.advance(harness.settings.accepted_keep_seconds + 60)
    pruning = HistoryPruning(store, harness.settings)
    while await pruning.step(1) is not None:
        pass
    assert sorted(harness.database.rows(TABLES, AcceptedRow)) == ["00", "01", "02"]
    harness.clock.advance(harness.settings.tasks_keep_seconds)
    while await pruning.step(1) is not None:
        pass
    assert not harness.database.rows(TABLES, AcceptedRow)


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
async def test_events_are_deleted_by_age_but_for_the_newest(harness: GatewayHarness) -> None:
    store, keep = harness.gateway.ports.store, harness.settings.events_keep_seconds
    pruning = HistoryPruning(store, harness.settings)
    for seconds, kept in ((0, [1, 2, 3]), (keep - 10, [1, 2, 3]), (20, [3])):
        harness.clock.advance(seconds)
        if not seconds:
            await harness.project(*(a_node(f"n{number}") for number in range(3)))
        await pruning.step(1)
        assert sorted(harness.database.rows(TABLES, EventRow)) == kept


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
async def test_ended_tasks_are_deleted_with_their_runs_and_metrics(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    ended, live = await harness.submitted(ann), await harness.submitted(ann)
    for task in (ended, live):
        await harness.project(assigned(task["id"]))
    store = harness.gateway.ports.store
    await harness.project(
        state(ended["id"], m.TaskState.SUCCEEDED, 9, finished_at=harness.clock.now())
    )
    async with store.transaction() as tx:
        for task in (ended, live):
            for rank in range(150):
                row = MetricsRow(task["id"], rank, 1, harness.clock.now(), {}, [], 1, 0)
                tx.put(row)
            tx.put(ProgressRow(task["id"], 1, harness.clock.now(), {"step": 1.0}))
    harness.clock.advance(harness.settings.tasks_keep_seconds + 60)
    prune = Pruning("gateway", store, harness.settings, prune_rules(harness.settings))
    # One step deletes at most a hundred rows of metrics.
    assert await prune.step(1) == 0.0
    assert await prune.step(1) is None
    assert set(harness.database.rows(TABLES, TaskRow)) == {live["id"]}
    assert {row.task_id for row in harness.database.rows(TABLES, RunRow).values()} == {live["id"]}
    metrics = harness.database.rows(TABLES, MetricsRow).values()
    assert [row.task_id for row in metrics] == [live["id"]] * 150
    assert set(harness.database.rows(TABLES, ProgressRow)) == {live["id"]}


async def test_unreadable_events_are_deleted_once_the_log_exceeds_its_limit(
    harness: GatewayHarness,
) -> None:
    """The oldest event and two adjacent later ones are unreadable."""
    await harness.project(*(a_node(f"n{number}") for number in range(6)))
    store, table = harness.gateway.ports.store, harness.database.schema("gateway").table
    events = table(TABLES.shape(EventRow))
    rows = [events.rows[key] for key in sorted(events.rows)]
    log_head = next(iter(harness.database.rows(TABLES, EventHeadRow).values()))

    async def drop(bytes_max: int) -> list[int]:
        async with store.transaction(epoch=1) as tx:
            await drop_old_events(tx, kept_max=1000, bytes_max=bytes_max, rows_max=100)
        return sorted(harness.database.rows(TABLES, EventRow))

    keys = sorted(events.rows)
    for key in (keys[0], keys[2], keys[3]):
        events.broken[key] = "column data cannot be decoded"
    # While the limit allows it, a broken row stays: an operator who repairs it loses nothing.
    assert await drop(log_head.bytes) == keys
    assert await drop(log_head.bytes - rows[1].bytes_before) == keys
    assert await drop(log_head.bytes - rows[1].bytes_before - 1) == keys[2:]
    assert await drop(log_head.bytes - rows[4].bytes_before) == keys[2:]
    assert await drop(log_head.bytes - rows[5].bytes_before) == keys[5:]


async def test_only_the_accepted_row_of_an_unreadable_task_is_kept(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    tasks = [await harness.submitted(ann) for _ in range(2)]
    store = harness.gateway.ports.store
    async with store.transaction() as tx:
        for task in tasks:
            row = await tx.get(TaskRow, task["id"])
            values = {field.name: getattr(row, field.name) for field in fields(AcceptedRow)}
            tx.put(AcceptedRow(**values))
    table = harness.database.schema("gateway").table(TABLES.shape(TaskRow))
    (bad,) = (key for key, row in table.rows.items() if row.task_id == tasks[0]["id"])
    table.broken[bad] = "column spec cannot be decoded"
    # A new gateway does not have the rows in its memory.
    async with harness.new_gateway().ports.store.transaction() as tx:
        assert await drop_settled(tx, tx.now + timedelta(days=1), 100) == ""
    (left,) = harness.database.rows(TABLES, AcceptedRow).values()
    assert left.task_id == tasks[0]["id"]


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
@pytest.mark.parametrize("ahead", ["sender", "projector", "version before"])
async def test_events_grow_old_behind_one_that_is_dated_in_the_future(
    harness: GatewayHarness, ahead: str
) -> None:
    """The age counts from the entry, and an entry while the clock was ahead goes with the next."""
    store, keep = harness.gateway.ports.store, harness.settings.events_keep_seconds
    await harness.project(a_node("n0"))
    table = harness.database.schema("gateway").table(TABLES.shape(EventRow)).rows
    first, far = table[1], harness.clock.now() + timedelta(days=4000)
    table.update({n: replace(first, position=n, fact=str(n)) for n in range(2, 200)})
    if ahead == "sender":
        # Soon it lies in the past, and is still young.
        table[1] = replace(first, at=harness.clock.now() + timedelta(seconds=keep / 2))
    elif ahead == "projector":
        table[1] = replace(first, entered_at=far)
    else:
        table[1] = replace(first, at=far, entered_at=None)
    async with store.transaction(epoch=1) as tx:
        tx.put(EventHeadRow("log", 199, 1))
    step = HistoryPruning(store, harness.settings).step
    await step(1)
    assert len(harness.database.rows(TABLES, EventRow)) == 199
    harness.clock.advance(keep + 60)
    await step(1)
    assert set(harness.database.rows(TABLES, EventRow)) == {199}


async def test_events_stay_while_the_clock_is_behind(harness: GatewayHarness) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(5)))
    harness.clock.advance(-86_400 * 365 * 3)
    await HistoryPruning(harness.gateway.ports.store, harness.settings).step(1)
    assert len(harness.database.rows(TABLES, EventRow)) == 5


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
async def test_caps_and_nodes_that_are_there_do_not_grow_old(harness: GatewayHarness) -> None:
    """Only removed ones are deleted by age."""
    store, now = harness.gateway.ports.store, harness.clock.now()
    await harness.project(a_node("n0"), a_node("n1", removed=True))
    async with store.transaction() as tx:
        for user, removed in (("live", False), ("gone", True)):
            cap = m.Quota(group="default", user=user, limit=1, unit=m.Unit.GPUS)
            tx.put(replace(quota_row(cap, "admin", now), version=1, removed=removed))
    harness.clock.advance(86_400 * 365 * 50)
    pruning = Pruning("gateway", store, harness.settings, prune_rules(harness.settings))
    while await pruning.step(1) is not None:
        pass
    assert [row.user for row in harness.database.rows(TABLES, QuotaRow).values()] == ["live"]
    assert set(harness.database.rows(TABLES, NodeRow)) == {"n0"}


@pytest.mark.parametrize("harness", [{"prune_days_per_hour": 0}], indirect=True)
async def test_a_deleted_task_leaves_no_row_of_its_metrics(harness: GatewayHarness) -> None:
    store, now = harness.gateway.ports.store, harness.clock.now()
    async with store.transaction() as tx:
        tx.put(TaskRow("old", owner="ann", state="succeeded", goal="run", finished_at=now))
        tx.put(MetricsRow("old", 0, 1, now, {}, [], 1, 0))
        row = await tx.get(MetricsRow, "old", 0)
        assert row is not None
        tx.put(tail_of(row), progress(row))
    assert harness.database.rows(TABLES, MetricTailRow)
    harness.clock.advance(harness.settings.tasks_keep_seconds + 60)
    pruning = Pruning("gateway", store, harness.settings, prune_rules(harness.settings))
    while await pruning.step(1) is not None:
        pass
    for kind in (TaskRow, MetricsRow, MetricTailRow, ProgressRow):
        assert not harness.database.rows(TABLES, kind), kind
