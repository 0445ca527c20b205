"""The quotas of a task's scope are found by an index, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from libs.contracts.messages import Priority, Unit
from libs.store.connections import Address, connect
from services.submit.store import facts_for
from services.submit.tables import TABLES
from tests.kit.waiting import until

if TYPE_CHECKING:
    from libs.store.connections import Connection
    from tests.kit.memory import MemoryPlatform

NORMAL, NONE, GPUS = Priority.NORMAL.value, Priority.UNSPECIFIED.value, Unit.GPUS.value
ROWS, PER_OWNER, LOOKUPS = 100_000, 4, 20
# Owners with grants in four groups each, and the rows that hold for everybody.
FILL = f"""
    INSERT INTO submit.quota (scope, version, removed, "group", "user", team, priority, unit,
                              "limit", "grant", unlimited, level_max)
    SELECT 'grant-' || n, n, false, 'group' || n % {PER_OWNER}, 'user' || n / {PER_OWNER}, '',
           '{NORMAL}', '{GPUS}', 8, true, false, '{NONE}'
    FROM generate_series(0, {ROWS - 1}) AS n;
    INSERT INTO submit.quota (scope, version, removed, "group", "user", team, priority, unit,
                              "limit", "grant", unlimited, level_max)
    VALUES ('all', {ROWS}, false, '', '', '', '{NORMAL}', '{GPUS}', 8, true, false, '{NONE}');
    ANALYZE submit.quota
"""
READS = """
    SELECT seq_scan, idx_scan, idx_tup_fetch FROM pg_stat_user_tables
    WHERE schemaname = 'submit' AND relname = 'quota'
"""


@pytest.mark.server
async def test_the_quotas_of_a_scope_are_found_by_their_index(
    platform: MemoryPlatform, address: Address
) -> None:
    connection = await connect(address)
    await connection.execute(FILL)
    store = platform.sql_store(address, TABLES)
    ((scans, lookups, rows),) = await connection.fetch(READS)
    # More often than a prepared statement is planned for its values alone.
    for number in range(LOOKUPS):
        async with store.transaction() as tx:
            facts = await facts_for(tx, owner=f"user{number}", team="vision", group="group1")
        assert {(row.user, row.group) for row in facts.quotas} == {
            (f"user{number}", "group1"),
            ("", ""),
        }
    # Its backend reports what it has read when it ends.
    await store.close()
    after = await read_after(connection, lookups)
    await connection.close()
    assert (after[0] - scans, after[1] > lookups) == (0, True)
    assert after[2] - rows <= LOOKUPS * (PER_OWNER + 1)


async def read_after(connection: Connection, lookups: int) -> tuple[int, int, int]:
    """What was read of the table, once the server has counted more lookups than before."""
    found: list[tuple[int, int, int]] = []

    async def is_counted() -> bool:
        ((scans, seen, rows),) = await connection.fetch(READS)
        found.append((scans or 0, seen or 0, rows or 0))
        return found[-1][1] > lookups

    await until(is_counted)
    return found[-1]
