"""Dead letters and refused events on PostgreSQL: what only a real database can have."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.bus.memory import MemoryBus
from libs.bus.port import RawMessage
from libs.contracts import messages as m
from libs.service import dead_letters
from libs.service.definition import Ports, Service
from libs.service.runner import Runner
from libs.store.connections import Address, connect
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow, Direction
from libs.store.sql import SqlStore
from services.quota.main import WIRING
from tests.kit.clock import START, FakeClock
from tests.libs.service.service_harness import CountingService, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from libs.service.wiring import Wiring
    from tests.kit.memory import MemoryPlatform


pytestmark = pytest.mark.server
MIB = 1024 * 1024


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest_asyncio.fixture
async def store(address: Address, platform: MemoryPlatform) -> AsyncIterator[SqlStore]:
    made = platform.sql_store(address, WIRING.tables)
    yield made
    await made.close()


async def test_rows_of_the_outbox_that_cannot_be_read_become_dead_letters(
    address: Address, store: SqlStore
) -> None:
    platform = CountingService()
    ports = Ports(store, MemoryBus(platform.broker, "quota"), FakeClock())
    service = Service(name="quota", ports=ports, handlers={}, commands={})
    connection = await connect(address)
    try:
        async with store.transaction() as tx:
            for number in range(600):
                tx.emit(m.UsageRecorded(group=f"g{number}", started_at=START, ended_at=START))
        # As an earlier or later version may have written them; a whole page of them comes first.
        await connection.execute(
            "UPDATE quota.outbox SET type = 'shiftwork.quota.v9.Unknown' WHERE id <= 300;"
            "UPDATE quota.outbox SET body = '{' WHERE id = 400"
        )
        runner = Runner(service, platform.settings)
        task = asyncio.ensure_future(runner.run())
        left = "SELECT count(*) FROM quota.outbox WHERE published_at IS NULL"
        async with asyncio.timeout(60):
            while await connection.fetchval(left):
                assert not task.done()
                await asyncio.sleep(0.1)
        assert len(platform.usages()) == 299
        assert not runner.relay.refused
        async with store.transaction() as tx:
            rows = await tx.select(DeadLetterRow)
            bodies = {row.id: row.body for row in await tx.select(DeadLetterBody)}
        assert len(rows) == 301
        assert {row.direction for row in rows} == {Direction.SENT}
        assert {row.type for row in rows} == {
            "shiftwork.quota.v9.Unknown",
            "shiftwork.quota.v1.UsageRecorded",
        }
        assert [row.size for row in rows] == [len(bodies[row.id]) for row in rows]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def test_lists_and_replays_of_letters_do_not_read_their_bodies(store: SqlStore) -> None:
    for number in range(20):
        headers = {"ce-id": f"{number:02}", "ce-type": "t"}
        raw = RawMessage("s", headers, bytes(4 * MIB))
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.SENT, raw, "too large")
    tracemalloc.start()
    try:
        async with store.transaction() as tx:
            page = await dead_letters.list_letters(tx, m.ListDeadLetters(service="quota"))
            wanted = m.ReplayDeadLetters(service="quota")
            reply = await dead_letters.replay_letters(tx, wanted)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [letter.size for letter in page.letters] == [4 * MIB] * 20
    assert len(reply.ids) == 20
    assert peak < 2 * MIB


async def test_a_replay_reads_one_body_at_a_time(store: SqlStore) -> None:
    """They cannot be read, so that all of them stay."""
    for number in range(20):
        raw = RawMessage("s", {"ce-id": f"{number:02}", "ce-type": "t"}, bytes(4 * MIB))
        async with store.transaction() as tx:
            await dead_letters.keep(tx, Direction.SENT, raw, "too large")
    platform = CountingService()
    ports = Ports(store, MemoryBus(platform.broker, "quota"), FakeClock())
    runner = Runner(Service(name="quota", ports=ports, handlers={}, commands={}), platform.settings)
    tracemalloc.start()
    task = asyncio.ensure_future(runner.run())
    try:
        await until(lambda: runner.epoch is not None, seconds_max=30)
        await platform.gateway.request(m.ReplayDeadLetters(service="quota"), timeout_s=10)
        async with asyncio.timeout(60):
            while True:
                async with store.transaction() as tx:
                    rows = await tx.select(DeadLetterRow)
                if all(row.replays == 1 for row in rows):
                    break
                await asyncio.sleep(0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert peak < 20 * MIB
