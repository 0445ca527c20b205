"""Each service's migrations lead to exactly the tables that its code declares."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from libs.store import migrate
from libs.store.connections import Address, connect
from libs.store.tables import VERSION_TABLE
from services.allinone.composition import WIRINGS

if TYPE_CHECKING:
    from pathlib import Path

    import asyncpg

    from libs.service.wiring import Wiring
    from libs.store.tables import Tables
    from tests.kit.postgres import Database, PostgresServer

# What PostgreSQL has of a schema: columns (without defaults, which a migration needs for the rows
# that are there), constraints, and indexes with their methods and conditions.
CATALOGUE = """
    SELECT format('column %s.%s %s%s %s', c.relname, a.attname,
                  format_type(a.atttypid, a.atttypmod), ' COLLATE ' || l.collname,
                  CASE WHEN a.attnotnull THEN 'NOT NULL' ELSE 'NULL' END
                  || CASE WHEN a.attidentity <> '' OR a.attgenerated <> ''
                     THEN ' generated' ELSE '' END)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> $2
      AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT format('constraint %s.%s %s', c.relname, o.conname, pg_get_constraintdef(o.oid))
    FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname <> $2
    UNION ALL
    SELECT 'index ' || indexdef FROM pg_indexes
    WHERE schemaname = $1 AND tablename <> $2
    UNION ALL
    SELECT format('%s %s', c.relkind, c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'v', 'S') AND c.relname <> $2
"""


async def catalogue(address: Address, schema: str) -> Counter[str]:
    connection = await connect(address)
    try:
        rows = await connection.fetch(CATALOGUE, schema, VERSION_TABLE)
    finally:
        await connection.close()
    return Counter(str(row[0]) for row in rows)


async def create(address: Address, tables: Tables) -> None:
    """Make the tables as they are declared, without any migration."""
    connection, dialect = await connect(address), postgresql.dialect()
    try:
        for table in tables.metadata.sorted_tables:
            statements = [sa.schema.CreateTable(table)]
            statements += [sa.schema.CreateIndex(index) for index in table.indexes]
            for statement in statements:
                await connection.execute(str(statement.compile(dialect=dialect)))
    finally:
        await connection.close()


async def empty_schema(database: Database, name: str) -> Address:
    role = await database.role(name)
    return Address(url=role.url, password=role.password)


@pytest.mark.server
@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
async def test_a_schema_is_made_from_nothing_and_is_what_the_code_expects(
    database: Database, wiring: Wiring
) -> None:
    address = await empty_schema(database, wiring.name)
    assert await migrate.current(address, wiring.tables) == ""
    await migrate.upgrade(address, wiring.tables, wiring.migrations)
    made = await migrate.current(address, wiring.tables)
    assert made == migrate.newest(wiring.migrations)
    await migrate.upgrade(address, wiring.tables, wiring.migrations)
    assert await migrate.current(address, wiring.tables) == made
    assert await migrate.check(address, wiring.tables) == []


@pytest.mark.server
@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
async def test_the_migrations_make_exactly_the_declared_tables(
    postgres_server: PostgresServer, wiring: Wiring
) -> None:
    """Alembic's comparison, above, sees neither rules nor conditions and methods of indexes."""
    migrated = await empty_schema(await postgres_server.database(), wiring.name)
    declared = await empty_schema(await postgres_server.database(), wiring.name)
    await migrate.upgrade(migrated, wiring.tables, wiring.migrations)
    await create(declared, wiring.tables)
    schema = wiring.tables.schema
    found, wanted = await catalogue(migrated, schema), await catalogue(declared, schema)
    assert (sorted(found - wanted), sorted(wanted - found)) == ([], [])


# A service that is newer than this step begins with it.
MOVED = [each for each in WIRINGS if list(each.migrations.glob("versions/*_pre_refused_events.py"))]


@pytest.mark.server
@pytest.mark.parametrize("wiring", MOVED, ids=lambda wiring: wiring.name)
async def test_dead_letters_keep_their_bodies_when_these_move(
    database: Database, wiring: Wiring, tmp_path: Path
) -> None:
    before = tmp_path / "migrations"
    shutil.copytree(wiring.migrations, before)
    (moving,) = before.glob("versions/*_pre_refused_events.py")
    for later in before.glob("versions/*.py"):
        if later.name >= moving.name:
            later.unlink()
    address = await empty_schema(database, wiring.name)
    await migrate.upgrade(address, wiring.tables, before)
    letters = f"{wiring.tables.schema}.dead_letter"
    connection = await connect(address)
    try:
        await connection.execute(
            f"INSERT INTO {letters} VALUES"
            " ('sent-a', 'sent', 'a', 't', 's', '{}', 'four', 'no', now(), 0, NULL)"
        )
        await migrate.upgrade(address, wiring.tables, wiring.migrations)
        found = await connection.fetchrow(
            f"SELECT size, body FROM {letters} JOIN {letters}_body USING (id)"
        )
        assert found is not None
        assert tuple(found) == (4, b"four")
    finally:
        await connection.close()


EMPTY = {"text": "", "bigint": 0, "jsonb": "{}", "boolean": False}


async def insert(connection: asyncpg.Connection[Any], table: str, **given: Any) -> None:
    """A row with these values, and empty ones where a column must have some."""
    needed = await connection.fetch(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema ="
        " 'gateway' AND table_name = $1 AND is_nullable = 'NO' AND column_default IS NULL",
        table,
    )
    values = {row[0]: EMPTY.get(row[1]) for row in needed} | given
    names = ", ".join(f'"{name}"' for name in values)
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await connection.execute(
        f"INSERT INTO gateway.{table} ({names}) VALUES ({places})", *values.values()
    )


@pytest.mark.server
async def test_events_get_the_owners_of_the_tasks_that_are_known(
    database: Database, tmp_path: Path
) -> None:
    (wiring,) = (each for each in WIRINGS if each.name == "gateway")
    before = tmp_path / "migrations"
    shutil.copytree(wiring.migrations, before)
    for later in before.glob("versions/*.py"):
        if later.name >= "0019":
            later.unlink()
    address = await empty_schema(database, "gateway")
    await migrate.upgrade(address, wiring.tables, before)
    connection = await connect(address)
    now = datetime.now(UTC)
    owned = {"owner": "ann", "team": "red", "group": "train"}
    try:
        await insert(connection, "task", task_id="ta", submitted_at=now, **owned)
        for position, (task, data) in enumerate(
            [
                ("ta", "{}"),
                ("tgone", "{}"),
                ("", '{"node": {"group": "a100"}}'),
                ("", '{"group": "b200", "policy": {"group": "b200"}}'),
            ],
            start=1,
        ):
            await insert(connection, "event", position=position, task_id=task, at=now, data=data)
        await migrate.upgrade(address, wiring.tables, wiring.migrations)
        found = await connection.fetch(
            'SELECT owner, team, "group" FROM gateway.event ORDER BY position'
        )
        assert [tuple(row) for row in found] == [
            ("ann", "red", "train"),
            ("", "", ""),
            ("", "", "a100"),
            ("", "", "b200"),
        ]
    finally:
        await connection.close()
