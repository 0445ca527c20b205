"""The embedded NATS server on a disk that is full for a while.

The server refuses every message of a stream after one write of it failed, without an answer, until
the server is restarted; free space on the disk alone heals nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from services.allinone.embedded.credentials import NATS_ADMIN, ensure_credentials
from services.allinone.embedded.nats import Nats, NatsOptions
from services.allinone.embedded.wire import RestartWouldNotHelpError
from services.allinone.supervision import PartStatuses, Policy, State, supervise_server
from tests.kit.small_disk import SmallDisk, needs_small_disk, small_disk
from tests.kit.waiting import until

pytestmark = [pytest.mark.server, needs_small_disk]

DISK_MIB, STORE_BYTES = 96, 16 << 20
MESSAGE = b"x" * 20_000
HASTY = Policy(check_seconds=0.05, first_pause_seconds=0.05, most_pause_seconds=0.2)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_MIB) as disk:
        yield disk


@pytest.fixture
async def server(disk: SmallDisk) -> AsyncIterator[Nats]:
    data = disk.folder / "data"
    server = Nats(data, ensure_credentials(data, ()), {}, NatsOptions(store_bytes=STORE_BYTES))
    await server.start()
    try:
        yield server
    finally:
        disk.empty()
        await server.stop()
        server.remove_temporary()


@contextlib.asynccontextmanager
async def connected(disk: SmallDisk, server: Nats) -> AsyncIterator[Client]:
    password = ensure_credentials(disk.folder / "data", ()).nats_password(NATS_ADMIN)
    client = await nats.connect(
        server.url, user=NATS_ADMIN, password=password, reconnect_time_wait=0.05
    )
    try:
        yield client
    finally:
        await client.close()


async def publish(client: Client, seconds_max: float = 0.5) -> int:
    """The sequence number of the message that was stored."""
    answer = await client.request("s.x", MESSAGE, timeout=seconds_max)
    found = json.loads(answer.data)
    assert "error" not in found, found
    return int(found["seq"])


async def publish_until_refused(client: Client) -> int:
    """How many messages were stored."""
    count = 0
    with contextlib.suppress(nats.errors.TimeoutError):
        while True:
            await publish(client)
            count += 1
    return count


async def restarted(statuses: PartStatuses, client: Client) -> None:
    async with asyncio.timeout(20):
        await until(
            lambda: (
                statuses.records["nats"].restarts and statuses.records["nats"].state is State.UP
            ),
            20,
        )
        while not client.is_connected:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)


async def test_a_refusing_stream_heals_by_a_restart_once_space_is_free(
    disk: SmallDisk, server: Nats
) -> None:
    statuses = PartStatuses()
    async with connected(disk, server) as client:
        await client.jetstream().add_stream(name="S", subjects=["s.>"])
        stored = await publish(client)
        assert await server.healthy() == ""

        disk.fill()
        stored += await publish_until_refused(client)
        with pytest.raises(RestartWouldNotHelpError, match="no space left"):
            await server.healthy()
        keeping = asyncio.ensure_future(supervise_server(server, statuses, policy=HASTY))
        try:
            await asyncio.sleep(10 * HASTY.check_seconds)
            # Commands still pass through the server, so it stays.
            assert statuses.records["nats"].restarts == 0
            assert "no space left" in statuses.records["nats"].problem

            disk.empty()
            await restarted(statuses, client)
            # What was acknowledged is there, and the next message follows it.
            assert await publish(client, 5.0) == stored + 1
            assert statuses.records["nats"].restarts == 1
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def test_a_server_that_ended_on_a_full_disk_starts_once_space_is_free(
    disk: SmallDisk, server: Nats
) -> None:
    statuses = PartStatuses()
    async with connected(disk, server) as client:
        await client.jetstream().add_stream(name="S", subjects=["s.>"])
        stored = await publish(client)
        disk.fill()
        stored += await publish_until_refused(client)
        assert server.child is not None
        server.child.kill_now()
        keeping = asyncio.ensure_future(supervise_server(server, statuses, policy=HASTY))
        try:
            await asyncio.sleep(1.0)
            disk.empty()
            await restarted(statuses, client)
            assert await publish(client, 5.0) == stored + 1
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
