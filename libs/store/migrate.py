"""Migrates a service's schema to the state that its code expects, with one Alembic history each.

Every process of a service calls ``upgrade`` when it starts, and one of them migrates, under a lock.
Tests call ``check``. ``libs.store.roles`` has made the schema and its owner before. Files are
``migrations/versions/NNNN_pre_slug.py`` or ``NNNN_post_slug.py``: *pre* runs before the new code
and must suit the old code too, *post* cleans up once no old code runs.

``python -m libs.store.migrate new services.submit.tables add_owner --url postgresql://...`` writes
the next file from what the tables of a scratch database lack.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from libs.store.connections import Address, connect, translated
from libs.store.leader import lock_number
from libs.store.statements import quoted
from libs.store.tables import VERSION_TABLE, Tables

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection as SyncConnection

T = TypeVar("T")

# A migration may rewrite a table, so it has more time than an ordinary statement.
MIGRATION_TIMEOUT_S = 600.0
_DIGITS = 4


def newest(migrations: Path) -> str:
    """Return the revision that the code expects, the highest number of the files; empty if none."""
    numbers = (path.name[:_DIGITS] for path in (migrations / "versions").glob("[0-9]*_*.py"))
    return max(numbers, default="")


async def upgrade(address: Address, tables: Tables, migrations: Path) -> None:
    """Run all missing migrations in one transaction.

    If the schema is up to date or newer than this code, nothing changes and Alembic is not
    imported. Raises StoreUnavailableError if the database cannot be reached.
    """
    wanted = newest(migrations)
    if not wanted:
        raise FileNotFoundError(f"no migrations in {migrations / 'versions'}")
    if await current(address, tables) >= wanted:
        return

    def work(connection: SyncConnection) -> None:
        from alembic import command  # noqa: PLC0415 - only when there is something to do

        command.upgrade(_config(connection, tables, migrations), "head")

    await _run(address, tables, work)


async def current(address: Address, tables: Tables) -> str:
    """Return the revision of the schema; empty if it was never migrated."""
    with translated():
        connection = await connect(address)
        try:
            found = await connection.fetchval(
                f"SELECT version_num FROM {quoted(tables.schema, VERSION_TABLE)}"  # noqa: S608 - our names
            )
        except asyncpg.UndefinedTableError:
            return ""
        finally:
            await connection.close()
    return str(found or "")


async def check(address: Address, tables: Tables) -> list[str]:
    """List the differences between the schema and the tables, as ``alembic check`` does."""

    def work(connection: SyncConnection) -> list[str]:
        from alembic.autogenerate import compare_metadata  # noqa: PLC0415 - only for tests
        from alembic.migration import MigrationContext  # noqa: PLC0415

        context = MigrationContext.configure(
            connection, opts={**options(tables), "target_metadata": tables.metadata}
        )
        return [str(difference) for difference in compare_metadata(context, tables.metadata)]

    return await _run(address, tables, work)


async def write_next(address: Address, tables: Tables, migrations: Path, slug: str) -> Path:
    """Write the next migration, from the schema in ``address`` (upgraded first) to ``tables``."""
    (migrations / "versions").mkdir(parents=True, exist_ok=True)
    last = newest(migrations)
    if last:
        await upgrade(address, tables, migrations)
    revision = f"{int(last or 0) + 1:0{_DIGITS}}"

    def work(connection: SyncConnection) -> None:
        from alembic import command  # noqa: PLC0415 - as in upgrade

        command.revision(
            _config(connection, tables, migrations),
            message=slug,
            autogenerate=True,
            rev_id=revision,
        )

    await _run(address, tables, work)
    return migrations / "versions" / f"{revision}_{slug}.py"


async def _run(address: Address, tables: Tables, work: Callable[[SyncConnection], T]) -> T:
    """Call ``work`` with a connection, in one transaction and under the migration lock."""
    from sqlalchemy import text  # noqa: PLC0415 - the engine is not needed for the fast path
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415
    from sqlalchemy.pool import NullPool  # noqa: PLC0415

    with_timeout = replace(address, statement_timeout_s=MIGRATION_TIMEOUT_S)

    async def creator() -> Any:  # noqa: ANN401 - asyncpg's connection has no types
        return await connect(with_timeout)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=creator, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            number = lock_number("migrate", tables.schema)
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({number})"))
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _config(connection: SyncConnection, tables: Tables, migrations: Path) -> Config:
    """Build Alembic's configuration without a file."""
    from alembic.config import Config  # noqa: PLC0415 - as in upgrade

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "alembic"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", str(migrations / "versions"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.set_main_option("truncate_slug_length", "60")
    config.attributes.update(connection=connection, tables=tables)
    return config


def options(tables: Tables) -> dict[str, Any]:
    """Return Alembic's options for one service's schema alone. Called by ``alembic/env``."""

    def mine(name: str | None, kind: str, parents: object) -> bool:
        del parents
        return kind != "schema" or name == tables.schema

    return {
        "include_schemas": True,
        "include_name": mine,
        "compare_type": True,
        "version_table": VERSION_TABLE,
        "version_table_schema": tables.schema,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, for a developer who changed a ``tables.py``."""
    parser = argparse.ArgumentParser(prog="python -m libs.store.migrate")
    commands = parser.add_subparsers(required=True)
    new = commands.add_parser("new", help="write the next migration of a service")
    new.add_argument("module", help="where TABLES is, for example services.submit.tables")
    new.add_argument("slug", help="what changes, in snake_case")
    new.add_argument("--phase", choices=("pre", "post"), default="pre")
    new.add_argument("--url", required=True, help="a scratch database with the schema and its role")
    new.add_argument("--password-file", type=Path)
    given = parser.parse_args(arguments)
    module = importlib.import_module(given.module)
    password = given.password_file.read_text().strip() if given.password_file else None
    migrations = Path(str(module.__file__)).parent / "migrations"
    path = asyncio.run(
        write_next(
            Address(given.url, password), module.TABLES, migrations, f"{given.phase}_{given.slug}"
        )
    )
    print(path)  # noqa: T201 - the command's answer


if __name__ == "__main__":
    main()
