"""log-collector on the memory store and on PostgreSQL, migrated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.migrate import upgrade
from libs.store.port import Store
from libs.store.sql import SqlStore
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.main import WIRING
from services.log_collector.sources.memory import MemorySource
from services.log_collector.tables import TABLES
from tests.kit.servers import run_apart
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    ManualClock,
    a_store,
    numbers,
    settings_with,
)

if TYPE_CHECKING:
    from tests.kit.postgres import PostgresServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="package")
def address(postgres_server: PostgresServer) -> Address:
    """A database with the service's schema, for all tests; each empties it first."""

    async def prepare() -> Address:
        role = await (await postgres_server.database()).role("log_collector")
        made = Address(role.url, role.password)
        await upgrade(made, TABLES, WIRING.migrations)
        return made

    return run_apart(prepare())


@pytest.fixture(params=["memory", pytest.param("sql", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest) -> Address | None:
    return None if request.param == "memory" else request.getfixturevalue("address")


@pytest_asyncio.fixture
async def store(where: Address | None, clock: ManualClock) -> AsyncIterator[Store]:
    if where is None:
        yield a_store(clock)
        return
    connection = await connect(where)
    for table in TABLES.metadata.tables.values():
        await connection.execute(f'TRUNCATE "{table.schema}"."{table.name}"')
    await connection.close()
    made = SqlStore(where, TABLES, clock=clock, source="log_collector", new_id=numbers())
    yield made
    await made.close()


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest_asyncio.fixture
async def harness(store: Store, clock: ManualClock, source: MemorySource) -> CollectorHarness:
    made = CollectorHarness(store, clock, MemoryArchive(), settings_with(), source)
    await made.lead()
    return made
