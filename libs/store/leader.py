"""Leadership of a service: an advisory lock on a separate connection, and a row with the epoch.

The lock elects the leader; PostgreSQL frees it when the connection dies. Every leader's transaction
checks the epoch, so a former leader can no longer write. Called by ``sql``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from libs.store.connections import BROKEN, Address, Connection, connect, meaning, translated
from libs.store.statements import quoted
from libs.store.tables import LEADER, Tables
from libs.store.terms import StoreUnavailableError


async def pause(closing: asyncio.Event, seconds: float) -> None:
    """Wait. Raises StoreUnavailableError if the store is closed meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            await closing.wait()
    except TimeoutError:
        return
    raise StoreUnavailableError("the store is closed")


def lock_number(purpose: str, schema: str) -> int:
    """Return the number of the advisory lock for a purpose in a schema."""
    digest = hashlib.sha256(f"shiftwork/{purpose}/{schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class SqlLeadership:
    """A leadership that lasts as long as its connection."""

    def __init__(self, connection: Connection, epoch: int, probe_s: float) -> None:
        self._connection = connection
        self.epoch = epoch
        self._probe_s = probe_s
        self._gone = asyncio.Event()
        self._probing = asyncio.Lock()
        connection.add_termination_listener(lambda _connection: self._gone.set())

    async def lost(self) -> None:
        """Return when the connection has ended, and the lock with it."""
        async with self._probing:
            while not (self._gone.is_set() or self._connection.is_closed()):
                try:
                    async with asyncio.timeout(self._probe_s):
                        await self._gone.wait()
                except TimeoutError:
                    await self._probe()

    async def _probe(self) -> None:
        """Query the server with a timeout: a network that drops packets closes no connection."""
        try:
            async with asyncio.timeout(max(1.0, 2 * self._probe_s)):
                await self._connection.fetchval("SELECT 1")
        except BROKEN:
            self._connection.terminate()
            self._gone.set()

    async def release(self) -> None:
        """Give up the leadership at once."""
        self._gone.set()
        if self._connection.is_closed():
            return
        try:
            async with asyncio.timeout(1.0):
                await self._connection.close()
        except BROKEN:
            self._connection.terminate()


@dataclass(frozen=True, slots=True)
class Campaign:
    """The candidate's name, the schema to lead, and the intervals of its attempts and probes in
    seconds."""

    address: Address
    schema: str
    name: str
    poll_s: float
    probe_s: float


async def lead(
    campaign: Campaign, closing: asyncio.Event, connected: Callable[[bool], None]
) -> SqlLeadership:
    """Wait for the lock, then raise the epoch.

    Polls, so that it can be cancelled and survives a restart of the server. Calls ``connected``
    with whether the connection works. Raises StoreUnavailableError only once ``closing`` is set.
    """
    while True:
        try:
            return await _attempt(campaign, closing, connected)
        except Exception as error:
            known = meaning(error, closed=True)
            if not isinstance(known, StoreUnavailableError):
                raise
        connected(False)
        await pause(closing, campaign.poll_s)


async def _attempt(
    campaign: Campaign, closing: asyncio.Event, connected: Callable[[bool], None]
) -> SqlLeadership:
    """Try with one connection. Raises the driver's errors."""
    connection = await connect(campaign.address)
    connected(True)
    try:
        number = lock_number("leader", campaign.schema)
        while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", number):
            await pause(closing, campaign.poll_s)
        # This waits for an open transaction of the last leader; afterwards none of them can commit.
        epoch = await connection.fetchval(
            f"INSERT INTO {quoted(campaign.schema, LEADER)} AS l"  # noqa: S608 - our names
            " (id, epoch, version, name, bus_server)"
            " VALUES (1, 1, 0, $1, '') ON CONFLICT (id)"
            " DO UPDATE SET epoch = l.epoch + 1, name = excluded.name RETURNING epoch",
            campaign.name,
        )
    except BaseException:
        connection.terminate()
        raise
    return SqlLeadership(connection, int(epoch), campaign.probe_s)


# More versions than a service commits between a backup and its restoration: 1,000 a second for 30
# years.
VERSIONS_SKIPPED = 10**12


async def raise_epoch(address: Address, tables: Tables, past: int) -> int:
    """Make the next leader's epoch greater than ``past``; return the current epoch.

    Call it after a database was restored from a backup, while the nodes remember a later epoch. It
    also raises all versions above those that the lost leaders can have assigned, because a consumer
    that knows a later version would drop the next events as old. The current leader loses its term
    at its next transaction and leads again. The call can be repeated. Raises StoreUnavailableError
    if the database cannot be reached.
    """
    leader = quoted(tables.schema, LEADER)
    versioned = [each.table for each in tables.shapes.values() if "version" in each.by_name]
    with translated():
        connection = await connect(address)
        try:
            async with connection.transaction():
                await connection.execute(
                    f"INSERT INTO {leader} (id, epoch, version, name, bus_server)"  # noqa: S608 - our names
                    " VALUES (1, 0, 0, '', '') ON CONFLICT (id) DO NOTHING"
                )
                found = int(
                    await connection.fetchval(f"SELECT epoch FROM {leader} WHERE id = 1 FOR UPDATE")  # noqa: S608 - our names
                )
                if found < past:
                    await connection.execute(f"UPDATE {leader} SET epoch = $1", past)  # noqa: S608 - our names
                    for table in (LEADER, *versioned):
                        await connection.execute(
                            f"UPDATE {quoted(tables.schema, table)} SET version = version + $1",  # noqa: S608 - our names
                            VERSIONS_SKIPPED,
                        )
        finally:
            await connection.close()
    return max(found, past)
