"""Samples become series that are kept and read, on the memory store and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from libs.contracts.envelope import Envelope
from libs.contracts.messages import NodeSampled, ReadUtilization
from libs.store.port import Store, StoreUnavailableError, Tx
from services.monitor.main import WIRING
from services.monitor.series.store import SeriesRow
from services.monitor.settings import MonitorSettings
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.services.monitor.series.samples import (
    NODE,
    TASK,
    a_query,
    a_rank,
    a_sample,
    highs_of,
    lows_of,
    points_of,
)

BLOCK = 600


@pytest.fixture
def service(platform: MemoryPlatform, store: Store) -> ServiceHarness:
    """A monitor whose clock may be moved by days."""
    settings = MonitorSettings(database_url="-", nats_url="-", prune_days_per_hour=0)
    return ServiceHarness(platform, WIRING, settings, store=store)


@pytest.fixture
async def monitor(service: ServiceHarness) -> AsyncIterator[ServiceHarness]:
    """A leading monitor that hears the launcher."""
    service.clock.move_to(0)
    await service.lead()
    async with hearing(service):
        yield service


@contextlib.asynccontextmanager
async def hearing(service: ServiceHarness) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each()) for each in service.service.tasks]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send(service: ServiceHarness, *samples: NodeSampled, moves: bool = True) -> None:
    """Publish samples; the clock is where each was taken."""
    launcher = service.platform.connection("launcher")
    for number, sample in enumerate(samples):
        if moves:
            service.clock.current_time = sample.sampled_at
        envelope = Envelope(f"s{number}", "launcher", sample.sampled_at, sample)
        await launcher.send_telemetry(envelope)
        for _ in range(3):
            await asyncio.sleep(0)


async def settle(service: ServiceHarness, seconds: float) -> None:
    """Write and fold everything that is due at a moment."""
    service.clock.move_to(seconds)
    for loop in ("write-series", "fold-series"):
        while await service.step(loop) == 0.0:
            pass


async def series(service: ServiceHarness, query: object) -> Sequence[object]:
    reply = await service.ask(query)
    assert reply.refusal is None, reply.refusal
    return reply.series


async def read(
    service: ServiceHarness, begin: float, end: float, step: int = 0, **more: object
) -> dict[object, dict[int, float]]:
    """The averages by signal, and by rank and GPU where there are."""
    found = await series(service, a_query(begin, end, step, **more))
    return {_name(each): points_of(each) for each in found}


def _name(each: object) -> object:
    parts = [each.signal, each.rank, each.gpu]
    return each.signal if parts[1:] == [None, None] else tuple(parts)


async def test_a_sample_is_readable_at_once_and_after_it_was_written(
    monitor: ServiceHarness,
) -> None:
    await send(monitor, a_sample(0, cpu=10.0), a_sample(10, cpu=20.0), a_sample(30, cpu=40.0))
    expected = {"cpu_percent": {0: 10.0, 10: 20.0, 30: 40.0}}
    assert await read(monitor, 0, 60) == expected, "the missed sample is a gap"
    await settle(monitor, 100)
    assert len(await monitor.rows(SeriesRow)) == 1
    assert await read(monitor, 0, 60) == expected


async def test_what_was_written_outlives_the_leader_and_is_continued(
    monitor: ServiceHarness,
) -> None:
    await send(monitor, a_sample(0, cpu=10.0))
    await settle(monitor, 70)
    await send(monitor, a_sample(80, cpu=99.0))
    # Another process leads: what was not written is lost, what was is still there.
    monitor.service.on_lead_end()
    await monitor.lead()
    assert await read(monitor, 0, 120) == {"cpu_percent": {0: 10.0}}
    await send(monitor, a_sample(90, cpu=30.0))
    expected = {"cpu_percent": {0: 10.0, 90: 30.0}}
    assert await read(monitor, 0, 120) == expected
    await settle(monitor, 200)
    assert await read(monitor, 0, 120) == expected


async def test_complete_blocks_are_folded_and_nothing_is_counted_twice(
    monitor: ServiceHarness,
) -> None:
    samples = [a_sample(t, cpu=float(t % 60)) for t in range(0, BLOCK + 60, 10)]
    await send(monitor, *samples)
    wanted = a_query(0, BLOCK + 60, 60)
    before = await series(monitor, wanted)
    await settle(monitor, 2 * BLOCK)
    await settle(monitor, 2 * BLOCK + 1)
    rows = await monitor.rows(SeriesRow)
    assert sorted((row.step_seconds, row.folded) for row in rows) == [
        (10, False),
        (10, True),
        (60, False),
    ]
    (after,) = await series(monitor, wanted)
    assert [after] == list(before), "from one kind of blocks or from both"
    assert set(points_of(after).values()) == {25.0}
    assert set(lows_of(after).values()) == {0.0}
    assert set(highs_of(after).values()) == {50.0}
    # The fine points are still there.
    assert (await read(monitor, 0, 60))["cpu_percent"] == {t: float(t) for t in range(0, 60, 10)}


async def test_a_day_becomes_points_of_ten_minutes(monitor: ServiceHarness) -> None:
    for hour in range(12):
        begin = hour * 3600
        await send(monitor, *(a_sample(begin + t, cpu=float(hour)) for t in range(0, 3600, 60)))
        await settle(monitor, begin + 3600)
    await settle(monitor, 13 * 3600)
    await settle(monitor, 13 * 3600 + 1)
    found = (await read(monitor, 0, 12 * 3600, 600))["cpu_percent"]
    assert len(found) == 72
    assert {at: value for at, value in found.items() if value != at // 3600} == {}
    coarse = [row for row in await monitor.rows(SeriesRow) if row.step_seconds == 600]
    assert len(coarse) == 2


async def test_old_points_are_pruned_the_finer_the_sooner(monitor: ServiceHarness) -> None:
    await send(monitor, *(a_sample(t) for t in range(0, BLOCK, 60)))
    await settle(monitor, 7200)
    for moment, steps in ((7 * 3600, [60, 600]), (3 * 86_400, [600]), (15 * 86_400, [])):
        await settle(monitor, moment)
        for _ in range(4):
            await monitor.step("prune")
        kept = sorted({row.step_seconds for row in await monitor.rows(SeriesRow)})
        assert kept == steps, f"after {moment} s"


async def test_a_task_has_its_ranks_and_the_gpus_that_they_hold(monitor: ServiceHarness) -> None:
    here, there = a_rank(0, gpus=[1], cores=0.5), a_rank(1, gpus=[0, 1], cores=2.5)
    await send(
        monitor,
        a_sample(0, gpus=[5.0, 15.0]),
        a_sample(10, gpus=[10.0, 90.0], ranks=[here]),
        a_sample(10, gpus=[40.0, 60.0], ranks=[there], node="n2"),
        a_sample(20, gpus=[6.0, 16.0]),
    )
    for moment in (30, 700, 2000):
        found = await read(monitor, 0, 60, 10, task_id=TASK)
        assert found["cpu_cores", 0, None] == {10: 0.5}
        assert found["cpu_cores", 1, None] == {10: 2.5}
        # Its GPU alone, and only while it held it.
        assert found["gpu_percent", 0, 1] == {10: 90.0}
        assert found["gpu_percent", 1, 0] == {10: 40.0}
        assert found["gpu_percent", 1, 1] == {10: 60.0}
        assert ("gpu_percent", 0, 0) not in found
        await settle(monitor, moment)


async def test_attempts_are_told_apart(monitor: ServiceHarness) -> None:
    await send(
        monitor,
        a_sample(0, ranks=[a_rank(0, attempt=1, cores=1.0)]),
        a_sample(10, ranks=[a_rank(0, attempt=2, cores=2.0)]),
    )
    signals = ["cpu_cores"]
    both = await series(monitor, a_query(0, 60, task_id=TASK, signals=signals))
    assert [(each.attempt, points_of(each)) for each in both] == [(1, {0: 1.0}), (2, {10: 2.0})]
    second = await series(monitor, a_query(0, 60, task_id=TASK, attempt=2, signals=signals))
    assert [points_of(each) for each in second] == [{10: 2.0}]


async def test_an_answer_has_whole_ranks_and_says_where_to_go_on(monitor: ServiceHarness) -> None:
    ranks = [a_rank(number) for number in range(200)]
    await send(monitor, *(a_sample(t, ranks=ranks) for t in (0, 10)))
    found: list[int] = []
    first: int | None = 0
    for _ in range(20):
        query = a_query(0, 5000, task_id=TASK, first_rank=first, signals=["cpu_cores"])
        reply = await monitor.ask(query)
        found += [each.rank for each in reply.series]
        assert len(reply.to_json()) < 1_000_000
        first = reply.next_rank
        if first is None:
            break
    assert found == list(range(200))


@pytest.mark.parametrize("seconds", [-500, 3600])
async def test_a_sample_of_another_time_is_left_out(
    monitor: ServiceHarness, seconds: float
) -> None:
    monitor.clock.move_to(1000)
    await send(monitor, a_sample(1000 + seconds), moves=False)
    assert await read(monitor, 0, 9000) == {}


async def test_a_database_that_fails_loses_no_point(
    monitor: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(monitor, a_sample(0, cpu=10.0))
    whole = monitor.store.transaction

    @contextlib.asynccontextmanager
    async def failing(epoch: int | None = None) -> AsyncIterator[Tx]:
        async with whole(epoch=epoch) as tx:
            yield tx
            raise StoreUnavailableError("the commit is not answered")

    with monkeypatch.context() as patch:
        patch.setattr(monitor.store, "transaction", failing)
        with pytest.raises(StoreUnavailableError):
            await settle(monitor, 70)
    await settle(monitor, 80)
    monitor.service.on_lead_end()
    await monitor.lead()
    assert await read(monitor, 0, 60) == {"cpu_percent": {0: 10.0}}


async def test_the_newest_samples_of_nodes_and_tasks(monitor: ServiceHarness) -> None:
    ranks = [a_rank(0, gpus=[0], cores=1.5), a_rank(1, gpus=[1], cores=2.0)]
    await send(monitor, a_sample(0), a_sample(10, gpus=[20.0, 60.0, 99.0], ranks=ranks))
    query = ReadUtilization(node_ids=(NODE, "other"), task_ids=(TASK, "t2"))
    reply = await monitor.ask(query)
    (node,) = reply.nodes
    assert (node.node_id, node.sampled_at, len(node.gpus)) == (NODE, at(10), 3)
    (task,) = reply.tasks
    assert (task.task_id, task.attempt, task.ranks, task.gpus) == (TASK, 1, 2, 2)
    assert (task.cpu_cores, task.gpu_percent) == (3.5, 40.0)
    # The run is over: the node is measured without it.
    await send(monitor, a_sample(20))
    assert (await monitor.ask(query)).tasks == ()
    monitor.clock.move_to(200)
    assert (await monitor.ask(query)).nodes == ()


async def test_a_process_that_does_not_lead_keeps_nothing(service: ServiceHarness) -> None:
    async with hearing(service):
        await send(service, a_sample(0))
    assert (await service.ask(a_query(0, 60))).series == ()


@pytest.mark.parametrize("query", [a_query(60, 60), a_query(60, 0), a_query(0, 60, node_id="")])
async def test_questions_without_a_meaning_are_refused(
    monitor: ServiceHarness, query: object
) -> None:
    reply = await monitor.ask(query)
    assert reply.refusal.errors[0].fix
