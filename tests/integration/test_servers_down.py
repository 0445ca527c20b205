from __future__ import annotations

import asyncio
import contextlib
import shutil
import time

import httpx
import pytest

from tests.chaos import invariants
from tests.kit.checkers import LIVENESS, verdict
from tests.kit.platform import Platform, held_down, running_platform, until

pytestmark = [pytest.mark.slow, pytest.mark.server]


async def ready(platform: Platform) -> bool:
    return (await platform.client.get("/readyz")).is_success


async def everything_ended_well(platform: Platform, accepted: set[str]) -> None:
    """Nothing lost, nothing twice, nothing set apart."""

    async def all_ended() -> bool:
        return {task["id"] for task in await platform.tasks() if task["state"] == "succeeded"} == (
            accepted
        )

    await until(all_ended, 60.0, "every task succeeded")
    nats = platform.dev.servers.nats.url

    async def complaints() -> list[str]:
        published = await invariants.envelopes(nats, platform.admin)
        lived = invariants.lives(platform.records)
        found = verdict(invariants.history_of(published, lived, accepted), LIVENESS)
        return [*found, *invariants.acknowledged_steps_are_kept(lived)]

    async def content() -> bool:
        return not await complaints()

    with contextlib.suppress(AssertionError):
        await until(content, 20.0)
    assert await complaints() == []
    assert list(await invariants.dead_letters(nats, platform.admin)) == []
    for life in invariants.lives(platform.records):
        path = f"/v1/tasks/{life.span.task_id}/logs"
        wanted = {"attempt": life.span.attempt, "rank": 0, "offset": 0, "limit_bytes": 1 << 20}

        async def complete(path: str = path, wanted: dict[str, int] = wanted) -> bool:
            answer = await platform.client.get(path, params=wanted)
            return answer.headers.get("x-shiftwork-complete") == "true"

        await until(complete, 20.0, "complete output")
        kept = (await platform.client.get(path, params=wanted)).content
        assert list(invariants.output_is_complete(life, kept)) == []


@pytest.mark.timeout(150)
async def test_the_last_seconds_of_nats_are_lost() -> None:
    async with running_platform() as platform:
        early = await platform.submit(
            "early", "--steps", "200", "--save-every", "10", priority="low"
        )
        await platform.until_state(early, "running")
        store = platform.dev.servers.nats.child and platform.dev.data_folder.data / "nats" / "store"
        assert store
        shutil.copytree(store, platform.folder / "snapshot")

        # None of what follows is in the snapshot.
        lost = [await platform.submit(f"lost-{number}", "--steps", "10") for number in range(3)]
        await platform.until_state(lost[0], "succeeded")
        big = await platform.submit("big", "--steps", "20", gpus_per_node=2, priority="high")
        async with held_down(platform.dev.servers.nats):
            assert platform.dev.servers.nats.child is not None
            platform.dev.servers.nats.child.kill_now()
            shutil.rmtree(store)
            shutil.copytree(platform.folder / "snapshot", store)
        await everything_ended_well(platform, {early, *lost, big})
        new = await platform.submit("new", "--steps", "3")
        await platform.until_state(new, "succeeded")


async def outage(seconds: float) -> None:
    """PostgreSQL is down for so long while tasks run, are submitted and want to save."""
    async with running_platform() as platform:
        # Its first save waits for the end of the outage.
        long = await platform.submit("long", "--steps", "200", "--save-every", "20")
        short = await platform.submit("short", "--steps", "60")
        await platform.until_state(long, "running")
        await platform.until_state(short, "running")
        starts = {
            instance: platform.dev.processes.starts(*instance)
            for instance in platform.dev.processes.instances()
        }

        postgres = platform.dev.servers.postgres
        async with held_down(postgres):
            assert postgres.child is not None
            postgres.child.kill_now()
            began = time.monotonic()

            async def notices() -> bool:
                return not await ready(platform)

            await until(notices, 10.0, "not ready")
            meanwhile = [
                asyncio.ensure_future(platform.submit(f"during-{number}", "--steps", "3"))
                for number in range(3)
            ]
            while time.monotonic() - began < seconds:
                with contextlib.suppress(httpx.TransportError):
                    assert (await platform.client.get("/healthz")).is_success
                await asyncio.sleep(0.5)
        during = await asyncio.gather(*meanwhile)
        await until(lambda: ready(platform), 30.0, "ready again")
        await everything_ended_well(platform, {long, short, *during})
        # They waited; none had to be started again, and no task either.
        assert starts == {instance: platform.dev.processes.starts(*instance) for instance in starts}
        assert len(platform.lives(long)) == len(platform.lives(short)) == 1


@pytest.mark.timeout(150)
async def test_postgresql_is_down_for_ten_seconds() -> None:
    await outage(10.0)


@pytest.mark.timeout(400)
async def test_postgresql_is_down_for_two_minutes() -> None:
    await outage(120.0)
