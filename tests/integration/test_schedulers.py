from __future__ import annotations

import asyncio
import signal

import asyncpg
import httpx
import pytest

from libs.service.clock import SystemClock
from libs.store.connections import Address
from libs.store.port import NotLeaderError
from libs.store.sql import SqlStore
from services.scheduler.tables import TABLES
from tests.kit.platform import Platform, metric, running_platform, until

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]
TAKE_OVER_SECONDS = 5.0
STALL_SECONDS = 15.0


async def leads(platform: Platform, index: int) -> bool:
    port = platform.dev.processes.port("scheduler", index)
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return metric(text, 'shiftwork_leads{service="scheduler"}') == 1.0


async def second_scheduler(platform: Platform) -> None:
    assert platform.dev.processes.add("scheduler") == 1
    await platform.dev.processes.until_ready()
    assert await leads(platform, 0)
    assert not await leads(platform, 1)


def store_of(platform: Platform) -> SqlStore:
    """A store with the scheduler's own access to the database."""
    address = Address(
        url=platform.dev.servers.postgres.url("scheduler"),
        password=platform.dev.data_folder.credentials.postgres_password("scheduler"),
    )
    return SqlStore(address, TABLES, clock=SystemClock(), source="scheduler", new_id=lambda: "x")


async def commits(store: SqlStore, epoch: int) -> None:
    async with store.transaction(epoch=epoch):
        pass


@pytest.mark.slow
async def test_the_second_scheduler_decides_when_the_leader_is_killed() -> None:
    async with running_platform() as platform:
        await second_scheduler(platform)
        store = store_of(platform)
        try:
            before = await platform.submit("before", "--steps", "400")
            await platform.until_state(before, "running")

            assert platform.dev.processes.kill("scheduler", 0)
            # Long enough to be seen running, on a busy machine, too.
            after = await platform.submit("after", "--steps", "120")
            await platform.until_state(after, "running", TAKE_OVER_SECONDS)
            assert await leads(platform, 1)

            with pytest.raises(NotLeaderError):
                await commits(store, 1)
            await platform.until_state(after, "succeeded")
            assert (await platform.task(before))["attempt"] == 1
            # The refusal was for the epoch and for nothing else.
            await commits(store, 2)
        finally:
            await store.close()


@pytest.mark.slow
async def test_a_leader_that_stalls_is_fenced_off_when_it_wakes() -> None:
    async with running_platform() as platform:
        await second_scheduler(platform)
        first = platform.dev.processes.pid("scheduler", 0)
        platform.dev.processes.kill("scheduler", 0, signal.SIGSTOP)
        postgres = platform.dev.servers.postgres
        admin = await asyncpg.connect(postgres.admin_url, password=postgres.admin_password)
        try:
            # Its lock's connection goes, as when a network swallows packets for long.
            gone = await admin.fetch(
                "SELECT pg_terminate_backend(activity.pid) FROM pg_stat_activity AS activity"
                " JOIN pg_locks USING (pid) WHERE locktype = 'advisory' AND granted"
                " AND usename = 'scheduler'"
            )
            assert len(gone) == 1
        finally:
            await admin.close()
        task = await platform.submit("while-stalled", "--steps", "40")
        # What a stalled process is still given comes again when its time to answer is over, and
        # once more as long as its last pull is open.
        await platform.until_state(task, "running", STALL_SECONDS)
        platform.dev.processes.kill("scheduler", 0, signal.SIGCONT)

        async def one_leads() -> bool:
            return [await leads(platform, 0), await leads(platform, 1)] == [False, True]

        await until(one_leads, 10.0, "one leader")
        await platform.until_state(task, "succeeded")
        await asyncio.sleep(1.0)
        assert await one_leads()
        assert platform.dev.processes.pid("scheduler", 0) == first
        assert len(platform.lives(task)) == 1
