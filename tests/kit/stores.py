"""Fixtures for tests of a service on the memory store and on PostgreSQL, migrated.

A suite names its service in a fixture ``wiring``; each test that uses ``store`` then runs twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.migrate import upgrade
from libs.store.port import Store
from tests.kit.clock import FakeClock
from tests.kit.memory import MemoryPlatform
from tests.kit.servers import run_apart

if TYPE_CHECKING:
    from libs.service.wiring import Wiring
    from tests.kit.postgres import Database, PostgresServer

Migrated = dict[str, Address]
MEMORY_AND_SQL = ["memory", pytest.param("sql", marks=pytest.mark.server)]


async def migrated(database: Database, wiring: Wiring) -> Address:
    """The service's schema in a database."""
    role = await database.role(wiring.name)
    address = Address(role.url, role.password)
    await upgrade(address, wiring.tables, wiring.migrations)
    return address


async def empty(address: Address, wiring: Wiring) -> None:
    """Delete all rows of the service."""
    connection = await connect(address)
    for table in wiring.tables.metadata.tables.values():
        await connection.execute(f'TRUNCATE "{table.schema}"."{table.name}"')
    await connection.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def platform(clock: FakeClock) -> MemoryPlatform:
    return MemoryPlatform(clock)


@pytest.fixture(scope="session")
def migrated_once(postgres_server: PostgresServer) -> Callable[[Wiring], Address]:
    """One database for all tests of a service; each test empties it first."""
    known: Migrated = {}

    async def prepare(wiring: Wiring) -> Address:
        return await migrated(await postgres_server.database(), wiring)

    def found(wiring: Wiring) -> Address:
        if wiring.name not in known:
            known[wiring.name] = run_apart(prepare(wiring))
        return known[wiring.name]

    return found


@pytest_asyncio.fixture
async def address(wiring: Wiring, migrated_once: Callable[[Wiring], Address]) -> Address:
    """The service's empty database on PostgreSQL."""
    found = migrated_once(wiring)
    await empty(found, wiring)
    return found


@pytest_asyncio.fixture(params=MEMORY_AND_SQL)
async def store(
    request: pytest.FixtureRequest, wiring: Wiring, platform: MemoryPlatform
) -> AsyncIterator[Store]:
    made: Store
    if request.param == "memory":
        made = platform.store(wiring.tables)
    else:
        address = request.getfixturevalue("migrated_once")(wiring)
        await empty(address, wiring)
        made = platform.sql_store(address, wiring.tables)
    yield made
    await made.close()
