"""The faults that the memory store can have; what it shares with PostgreSQL is in contract/."""

from __future__ import annotations

import asyncio

import pytest

from libs.store.memory import MemoryDatabase, MemoryStore, Point
from libs.store.port import NotLeaderError, StoreUnavailableError
from tests.kit.clock import FakeClock
from tests.libs.store.example import TABLES, Slot, an_event, next_id


def store_on(database: MemoryDatabase) -> MemoryStore:
    return MemoryStore(database, TABLES, clock=FakeClock(), source="thing", new_id=next_id)


async def put(store: MemoryStore, index: int, epoch: int | None = None) -> None:
    async with store.transaction(epoch=epoch) as tx:
        tx.put(Slot("a", index, None))
        tx.emit(an_event(version=index))
        await tx.unseen([f"seen-{index}"])


def strike_once(database: MemoryDatabase, at: Point) -> None:
    async def fault(point: Point, schema: str) -> None:
        if point is at:
            database.fault = quiet
            raise StoreUnavailableError("struck")

    async def quiet(point: Point, schema: str) -> None:
        pass

    database.fault = fault


def indexes(database: MemoryDatabase) -> list[int]:
    return sorted(slot.index for slot in database.rows(TABLES, Slot).values())


@pytest.mark.parametrize("point", [Point.BEGIN, Point.BEFORE_COMMIT])
async def test_a_fault_before_the_commit_keeps_nothing(point: Point) -> None:
    database = MemoryDatabase()
    store = store_on(database)
    strike_once(database, point)
    with pytest.raises(StoreUnavailableError):
        await put(store, 0)
    assert indexes(database) == []
    assert await store.outgoing(10) == []
    async with store.transaction() as tx:
        assert await tx.unseen(["seen-0"]) == {"seen-0"}
    await put(store, 1)


async def test_a_fault_after_the_commit_keeps_everything_and_is_found_out() -> None:
    database = MemoryDatabase()
    store = store_on(database)
    epoch = (await store.lead()).epoch
    await store.make_resident(Slot)
    strike_once(database, Point.AFTER_COMMIT)
    with pytest.raises(StoreUnavailableError):
        await put(store, 0, epoch)
    assert indexes(database) == [0]
    assert store.resident(Slot) == {}
    with pytest.raises(StoreUnavailableError, match="did commit"):
        await put(store, 1, epoch)
    assert list(store.resident(Slot)) == [("a", 0)]
    assert store.outbox_changed.is_set()
    await put(store, 1, epoch)
    assert indexes(database) == [0, 1]
    assert len(await store.outgoing(10)) == 2


async def test_a_stopped_server_refuses_and_keeps_what_was_committed() -> None:
    database = MemoryDatabase()
    store = store_on(database)
    leading = await store.lead()
    await put(store, 0, leading.epoch)
    database.stop()
    await asyncio.wait_for(leading.lost(), 1)
    campaign = asyncio.ensure_future(store_on(database).lead())
    for step in (put(store, 1), store.outgoing(1), store.published([1])):
        with pytest.raises(StoreUnavailableError):
            await step
    assert not campaign.done()
    database.start()
    assert (await asyncio.wait_for(campaign, 1)).epoch == leading.epoch + 1
    assert indexes(database) == [0]
    await put(store, 1)


async def test_a_restart_ends_open_transactions() -> None:
    database = MemoryDatabase()
    store = store_on(database)
    with pytest.raises(StoreUnavailableError):  # noqa: PT012 - it is raised on leaving
        async with store.transaction() as tx:
            tx.put(Slot("a", 0, None))
            await tx.select(Slot)
            database.stop()
            database.start()
    assert indexes(database) == []


async def test_a_crash_frees_the_leadership_and_the_data_survive() -> None:
    database = MemoryDatabase()
    first = store_on(database)
    epoch = (await first.lead()).epoch
    await put(first, 0, epoch)
    waiting = asyncio.ensure_future(store_on(database).lead())
    with pytest.raises(StoreUnavailableError):  # noqa: PT012 - it is raised on leaving
        async with first.transaction(epoch=epoch) as tx:
            tx.put(Slot("a", 1, None))
            first.crash()
    assert (await asyncio.wait_for(waiting, 1)).epoch == epoch + 1
    second = store_on(database)
    assert len(await second.outgoing(10)) == 1
    with pytest.raises(NotLeaderError):
        await put(second, 2, epoch)
    assert indexes(database) == [0]


async def test_the_schemas_of_one_server_do_not_touch() -> None:
    database = MemoryDatabase()
    await put(store_on(database), 0)
    assert database.schema("other").inbox == {}


async def test_a_campaign_outlives_a_fault() -> None:
    database = MemoryDatabase()
    strike_once(database, Point.LEAD)
    assert (await asyncio.wait_for(store_on(database).lead(), 5)).epoch == 1
