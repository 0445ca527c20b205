"""Every test of quota's handlers runs on the memory store and on PostgreSQL, migrated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.memory import MemoryDatabase, MemoryStore
from libs.store.migrate import upgrade
from libs.store.port import Store
from libs.store.sql import SqlStore
from libs.store.tables import LEADER
from services.quota.main import WIRING
from services.quota.tables import TABLES
from tests.conftest import run_apart
from tests.services.quota.world import Hands, World, a_world, numbers

if TYPE_CHECKING:
    from tests.kit.postgres import PostgresServer


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture(scope="package")
def address(postgres_server: PostgresServer) -> Address:
    """A database with the service's schema, for all tests; each empties it first."""

    async def prepare() -> Address:
        role = await (await postgres_server.database()).role("quota")
        made = Address(role.url, role.password)
        await upgrade(made, TABLES, WIRING.migrations)
        return made

    return run_apart(prepare())


@pytest.fixture(params=["memory", pytest.param("sql", marks=pytest.mark.server)])
def where(request: pytest.FixtureRequest) -> Address | None:
    return None if request.param == "memory" else request.getfixturevalue("address")


@pytest_asyncio.fixture
async def store(where: Address | None, clock: Hands) -> AsyncIterator[Store]:
    if where is None:
        yield MemoryStore(MemoryDatabase(), TABLES, clock=clock, source="quota", new_id=numbers())
        return
    connection = await connect(where)
    for table in TABLES.metadata.tables.values():
        if table.name != LEADER:
            await connection.execute(f'TRUNCATE "{table.schema}"."{table.name}"')
    await connection.close()
    made = SqlStore(where, TABLES, clock=clock, source="quota", new_id=numbers())
    yield made
    await made.close()


@pytest.fixture
def world(store: Store, clock: Hands) -> World:
    return a_world(store, clock)
