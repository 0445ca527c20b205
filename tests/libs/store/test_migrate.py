from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from libs.store import migrate
from libs.store.connections import Address, connect
from libs.store.port import StoreUnavailableError
from libs.store.sql import SqlStore
from libs.store.tables import Tables
from tests.kit.clock import FakeClock
from tests.libs.store.example import TABLES, Job, a_job, next_id

if TYPE_CHECKING:
    from tests.kit.postgres import Database


async def address_of(database: Database) -> Address:
    role = await database.role("thing")
    return Address(role.url, role.password)


@pytest.mark.server
async def test_a_history_is_written_run_and_checked(database: Database, tmp_path: Path) -> None:
    address = await address_of(database)
    assert await migrate.current(address, TABLES) == ""
    path = await migrate.write_next(address, TABLES, tmp_path, "pre_start")
    assert path.name == "0001_pre_start.py"
    assert "libs." not in path.read_text()
    assert await migrate.check(address, TABLES) != []

    # Two processes start at once: one of them migrates.
    await asyncio.gather(*(migrate.upgrade(address, TABLES, tmp_path) for _ in range(2)))
    assert await migrate.current(address, TABLES) == "0001"
    assert await migrate.check(address, TABLES) == []
    await migrate.upgrade(address, TABLES, tmp_path)

    store = SqlStore(address, TABLES, clock=FakeClock(), source="thing", new_id=next_id)
    async with store.transaction() as tx:
        tx.put(a_job())
    async with store.transaction() as tx:
        assert await tx.get(Job, "j1") == a_job()
    await store.close()


@pytest.mark.server
async def test_a_changed_table_is_found_and_migrated(database: Database, tmp_path: Path) -> None:
    address = await address_of(database)
    await migrate.write_next(address, TABLES, tmp_path, "pre_start")
    await migrate.upgrade(address, TABLES, tmp_path)
    connection = await connect(address)
    await connection.execute("DROP INDEX thing.job_one_live_per_rank")
    await connection.execute("ALTER TABLE thing.slot DROP COLUMN owner")
    await connection.execute("ALTER TABLE thing.outbox ALTER COLUMN subject DROP NOT NULL")
    await connection.execute("ALTER TABLE thing.job ALTER COLUMN deadline_at TYPE text")
    await connection.close()
    found = "\n".join(await migrate.check(address, TABLES))
    for name in ("job_one_live_per_rank", "owner", "subject", "deadline_at"):
        assert name in found
    await migrate.write_next(address, TABLES, tmp_path, "pre_repair")
    assert migrate.newest(tmp_path) == "0002"


@pytest.mark.server
async def test_a_schema_that_is_there_needs_no_alembic(database: Database, tmp_path: Path) -> None:
    address = await address_of(database)
    await migrate.write_next(address, TABLES, tmp_path, "pre_start")
    await migrate.upgrade(address, TABLES, tmp_path)
    program = (
        "import asyncio, sys, pathlib\n"
        "from libs.store import migrate\n"
        "from libs.store.connections import Address\n"
        "from tests.libs.store.example import TABLES\n"
        "url, password, folder = sys.argv[1:]\n"
        "asyncio.run(migrate.upgrade(Address(url, password), TABLES, pathlib.Path(folder)))\n"
        "print('alembic' in sys.modules)\n"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, address.url, address.password or "", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.server
async def test_a_failing_migration_leaves_nothing_behind(
    database: Database, tmp_path: Path
) -> None:
    address = await address_of(database)
    path = await migrate.write_next(address, TABLES, tmp_path, "pre_start")
    broken = path.read_text().replace("def upgrade() -> None:", "def upgrade_() -> None:")
    broken += "\n\ndef upgrade() -> None:\n    upgrade_()\n    op.execute('SELECT 1 / 0')\n"
    path.write_text(broken)
    with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
        await migrate.upgrade(address, TABLES, tmp_path)
    assert await migrate.current(address, TABLES) == ""
    connection = await connect(address)
    assert await connection.fetchval("SELECT to_regclass('thing.job')") is None
    await connection.close()


async def test_no_server_is_unavailable(tmp_path: Path) -> None:
    address = Address(f"postgresql://thing@/x?host={tmp_path}", "secret")
    with pytest.raises(StoreUnavailableError):
        await migrate.current(address, TABLES)


async def test_no_migrations_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await migrate.upgrade(Address("postgresql://x"), Tables("thing"), tmp_path)
