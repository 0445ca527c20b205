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
from tests.kit.platform import Stage, metric, on_stage, until

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]
TAKE_OVER_SECONDS = 5.0
STALL_SECONDS = 15.0


async def leads(stage: Stage, index: int) -> bool:
    port = stage.dev.processes.port("scheduler", index)
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    return metric(text, 'shiftwork_leads{service="scheduler"}') == 1.0


async def second_scheduler(stage: Stage) -> None:
    assert stage.dev.processes.add("scheduler") == 1
    await stage.dev.processes.until_ready()
    assert await leads(stage, 0)
    assert not await leads(stage, 1)


def store_of(stage: Stage) -> SqlStore:
    """What a scheduler has, in the test's hands."""
    address = Address(
        url=stage.dev.servers.postgres.url("scheduler"),
        password=stage.dev.place.credentials.postgres_password("scheduler"),
    )
    return SqlStore(address, TABLES, clock=SystemClock(), source="scheduler", new_id=lambda: "x")


async def commits(store: SqlStore, epoch: int) -> None:
    async with store.transaction(epoch=epoch):
        pass


async def test_the_second_scheduler_decides_when_the_leader_is_killed() -> None:
    async with on_stage() as stage:
        await second_scheduler(stage)
        store = store_of(stage)
        try:
            before = await stage.submit("before", "--steps", "400")
            await stage.until_state(before, "running")

            assert stage.dev.processes.kill("scheduler", 0)
            # Long enough to be seen running, on a busy machine, too.
            after = await stage.submit("after", "--steps", "120")
            await stage.until_state(after, "running", TAKE_OVER_SECONDS)
            assert await leads(stage, 1)

            with pytest.raises(NotLeaderError):
                await commits(store, 1)
            await stage.until_state(after, "succeeded")
            assert (await stage.task(before))["attempt"] == 1
            # The refusal was for the epoch and for nothing else.
            await commits(store, 2)
        finally:
            await store.close()


@pytest.mark.slow
async def test_a_leader_that_stalls_is_fenced_off_when_it_wakes() -> None:
    async with on_stage() as stage:
        await second_scheduler(stage)
        first = stage.dev.processes.pid("scheduler", 0)
        stage.dev.processes.kill("scheduler", 0, signal.SIGSTOP)
        postgres = stage.dev.servers.postgres
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
        task = await stage.submit("while-stalled", "--steps", "40")
        # What a stalled process is still given comes again when its time to answer is over, and
        # once more as long as its last pull is open.
        await stage.until_state(task, "running", STALL_SECONDS)
        stage.dev.processes.kill("scheduler", 0, signal.SIGCONT)

        async def one_leads() -> bool:
            return [await leads(stage, 0), await leads(stage, 1)] == [False, True]

        await until(one_leads, 10.0, "one leader")
        await stage.until_state(task, "succeeded")
        await asyncio.sleep(1.0)
        assert await one_leads()
        assert stage.dev.processes.pid("scheduler", 0) == first
        assert len(stage.lives(task)) == 1
