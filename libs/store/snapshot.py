"""What a backup reads of the database at one moment, and what a restore repairs in it.

``shiftwork backup`` opens a ``Snapshot`` and gives its name to ``pg_dump``, so that the dump and
the lists read here are of the same transaction; ``shiftwork restore`` calls ``publish_again``. Both
use an administrator's address.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg

from libs.store.connections import Address, Connection, connect, meaning, translated
from libs.store.statements import quoted
from libs.store.tables import OUTBOX, VERSION_TABLE

# One statement may list millions of rows, or analyze every table.
STATEMENT_SECONDS_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The database as of one moment, for as long as the context lasts."""

    name: str
    taken_at: datetime
    _connection: Connection

    async def revisions(self, schemas: Sequence[str]) -> dict[str, str]:
        """Return the revision of each schema; empty for one that was never migrated."""
        with translated():
            return {schema: await self._revision(schema) for schema in schemas}

    async def _revision(self, schema: str) -> str:
        table = quoted(schema, VERSION_TABLE)
        if await self._connection.fetchval("SELECT to_regclass($1)::text", table) is None:
            return ""
        found = await self._connection.fetchval(f"SELECT version_num FROM {table}")  # noqa: S608 - our names
        return str(found or "")

    async def list_rows(
        self, schema: str, table: str, fields: Sequence[str], order: Sequence[str], file: Path
    ) -> None:
        """Write fields of all rows to a file, as CSV in the order of some columns. Memory does not
        grow with the rows. A column that an older schema lacks is empty."""
        values = ", ".join(f"to_jsonb(r) ->> '{name}'" for name in fields)
        sort = ", ".join(f"r.{quoted(name)}" for name in order)
        query = f"SELECT {values} FROM {quoted(schema, table)} r ORDER BY {sort}"  # noqa: S608 - our names
        untyped: Any = self._connection
        try:
            await untyped.copy_from_query(query, output=file, format="csv")
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            # An OSError is the file's.
            raise meaning(error, closed=True) or error from error


@asynccontextmanager
async def snapshot(address: Address) -> AsyncGenerator[Snapshot]:
    """Read the database as of now in a transaction that other programs can join by its name.

    Raises StoreUnavailableError if the database cannot be reached.
    """
    address = replace(address, statement_timeout_s=STATEMENT_SECONDS_MAX)
    with translated():
        connection = await connect(address)
    try:
        with translated():
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # It only waits while another program copies the tables.
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            opened = Snapshot(
                name=await connection.fetchval("SELECT pg_export_snapshot()"),
                taken_at=await connection.fetchval("SELECT now()"),
                _connection=connection,
            )
        yield opened
    finally:
        connection.terminate()


async def publish_again(address: Address, schemas: Sequence[str], since: datetime) -> int:
    """Mark every kept event from ``since`` on as unpublished; return how many.

    Call it for a database that was restored beside an empty bus: what was on its way at the time of
    the backup exists only in the outboxes. Consumers recognise what they have handled by their
    inboxes, which are of the same moment. Raises StoreUnavailableError if the database cannot be
    reached.
    """
    address = replace(address, statement_timeout_s=STATEMENT_SECONDS_MAX)
    count = 0
    with translated():
        connection = await connect(address)
        try:
            async with connection.transaction():
                for schema in schemas:
                    if await connection.fetchval(
                        "SELECT to_regclass($1)::text", quoted(schema, OUTBOX)
                    ):
                        status = await connection.execute(
                            f"UPDATE {quoted(schema, OUTBOX)} SET published_at = NULL"  # noqa: S608 - our names
                            " WHERE published_at IS NOT NULL AND created_at >= $1",
                            since,
                        )
                        count += int(status.rpartition(" ")[2])
            # A restored table has no statistics for the planner.
            await connection.execute("ANALYZE")
        finally:
            await connection.close()
    return count
