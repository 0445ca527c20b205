"""What a backup reads of the database, and what a restore repairs in it."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from libs.store.connections import Address, connect
from libs.store.port import StoreUnavailableError
from libs.store.snapshot import publish_again, snapshot
from libs.store.sql import SqlStore
from tests.kit.clock import START, FakeClock
from tests.libs.store.example import TABLES, a_job, an_event, create_statements, next_id

if TYPE_CHECKING:
    from tests.kit.postgres import Database

pytestmark = pytest.mark.server


@pytest_asyncio.fixture
async def address(database: Database) -> Address:
    role = await database.role("thing")
    address = Address(role.url, role.password)
    connection = await connect(address)
    for statement in create_statements():
        await connection.execute(statement)
    await connection.close()
    return address


@pytest_asyncio.fixture
async def store(address: Address) -> AsyncIterator[SqlStore]:
    made = SqlStore(address, TABLES, clock=FakeClock(), source="thing", new_id=next_id)
    yield made
    await made.close()


async def put(store: SqlStore, *job_ids: str) -> None:
    async with store.transaction() as tx:
        tx.put(*(a_job(job_id) for job_id in job_ids))


async def test_a_list_is_as_of_the_moment_of_the_snapshot(
    store: SqlStore, address: Address, tmp_path: Path
) -> None:
    await put(store, "j2", "j1")
    listed = tmp_path / "listed"
    async with snapshot(address) as now:
        await put(store, "j3")
        # Another program joins the same snapshot by its name.
        joined = await connect(address)
        await joined.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await joined.execute(f"SET TRANSACTION SNAPSHOT '{now.name}'")
        assert await joined.fetchval("SELECT count(*) FROM thing.job") == 2
        joined.terminate()
        await now.list_rows("thing", "job", ("job_id", "ended", "newer_column"), ["job_id"], listed)
    with listed.open() as file:
        assert list(csv.reader(file)) == [["j1", "false", ""], ["j2", "false", ""]]


async def test_a_schema_that_was_never_migrated_has_no_revision(address: Address) -> None:
    connection = await connect(address)
    await connection.execute("CREATE TABLE thing.alembic_version (version_num text)")
    await connection.execute("INSERT INTO thing.alembic_version VALUES ('0007')")
    await connection.close()
    async with snapshot(address) as now:
        assert await now.revisions(["thing", "nothing"]) == {"thing": "0007", "nothing": ""}


async def test_no_server_is_a_store_that_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError):
        async with snapshot(Address(f"postgresql://thing@/x?host={tmp_path}")):
            pass


async def test_kept_events_are_published_again_unless_they_are_too_old(
    store: SqlStore, address: Address
) -> None:
    async with store.transaction() as tx:
        tx.emit(an_event())
        tx.emit(an_event("bob"))
    first, second = await store.outgoing(10)
    await store.published([first[0], second[0]])
    assert await publish_again(address, ["thing", "nothing"], START + timedelta(seconds=1)) == 0
    assert await store.outgoing(10) == []
    assert await publish_again(address, ["thing", "nothing"], START) == 2
    assert await store.outgoing(10) == [first, second]
    # Those that wait already are not counted again.
    assert await publish_again(address, ["thing"], START) == 0
