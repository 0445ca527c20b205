from __future__ import annotations

import asyncio
import contextlib
import shutil
import time

import httpx
import pytest

from tests.chaos import judges
from tests.kit.checkers import LIVENESS, verdict
from tests.kit.platform import Stage, held_down, on_stage, until

pytestmark = [pytest.mark.slow, pytest.mark.server]


async def ready(stage: Stage) -> bool:
    return (await stage.client.get("/readyz")).is_success


async def everything_ended_well(stage: Stage, accepted: set[str]) -> None:
    """Nothing lost, nothing twice, nothing set apart."""

    async def all_ended() -> bool:
        return {task["id"] for task in await stage.tasks() if task["state"] == "succeeded"} == (
            accepted
        )

    await until(all_ended, 60.0, "every task succeeded")
    nats = stage.dev.servers.nats.url

    async def complaints() -> list[str]:
        told = await judges.envelopes(nats, stage.admin)
        lived = judges.lives(stage.records)
        found = verdict(judges.history_of(told, lived, accepted), LIVENESS)
        return [*found, *judges.acknowledged_steps_are_kept(lived)]

    async def content() -> bool:
        return not await complaints()

    with contextlib.suppress(AssertionError):
        await until(content, 20.0)
    assert await complaints() == []
    assert list(await judges.dead_letters(nats, stage.admin)) == []
    for life in judges.lives(stage.records):
        path = f"/v1/tasks/{life.span.task_id}/logs"
        wanted = {"attempt": life.span.attempt, "rank": 0, "offset": 0, "limit_bytes": 1 << 20}

        async def complete(path: str = path, wanted: dict[str, int] = wanted) -> bool:
            answer = await stage.client.get(path, params=wanted)
            return answer.headers.get("x-shiftwork-complete") == "true"

        await until(complete, 20.0, "complete output")
        kept = (await stage.client.get(path, params=wanted)).content
        assert list(judges.output_is_complete(life, kept)) == []


@pytest.mark.timeout(150)
async def test_the_last_seconds_of_nats_are_lost() -> None:
    async with on_stage() as stage:
        early = await stage.submit("early", "--steps", "200", "--save-every", "10", priority="low")
        await stage.until_state(early, "running")
        store = stage.dev.servers.nats.child and stage.dev.place.data / "nats" / "store"
        assert store
        shutil.copytree(store, stage.folder / "snapshot")

        # None of what follows is in the snapshot.
        lost = [await stage.submit(f"lost-{number}", "--steps", "10") for number in range(3)]
        await stage.until_state(lost[0], "succeeded")
        big = await stage.submit("big", "--steps", "20", gpus_per_node=2, priority="high")
        async with held_down(stage.dev.servers.nats):
            assert stage.dev.servers.nats.child is not None
            stage.dev.servers.nats.child.kill_now()
            shutil.rmtree(store)
            shutil.copytree(stage.folder / "snapshot", store)
        await everything_ended_well(stage, {early, *lost, big})
        new = await stage.submit("new", "--steps", "3")
        await stage.until_state(new, "succeeded")


async def outage(seconds: float) -> None:
    """PostgreSQL is down for so long while tasks run, are submitted and want to save."""
    async with on_stage() as stage:
        # Its first save waits for the end of the outage.
        long = await stage.submit("long", "--steps", "200", "--save-every", "20")
        short = await stage.submit("short", "--steps", "60")
        await stage.until_state(long, "running")
        await stage.until_state(short, "running")
        starts = {who: stage.dev.processes.starts(*who) for who in stage.dev.processes.instances()}

        postgres = stage.dev.servers.postgres
        async with held_down(postgres):
            assert postgres.child is not None
            postgres.child.kill_now()
            began = time.monotonic()

            async def notices() -> bool:
                return not await ready(stage)

            await until(notices, 10.0, "not ready")
            meanwhile = [
                asyncio.ensure_future(stage.submit(f"during-{number}", "--steps", "3"))
                for number in range(3)
            ]
            while time.monotonic() - began < seconds:
                with contextlib.suppress(httpx.TransportError):
                    assert (await stage.client.get("/healthz")).is_success
                await asyncio.sleep(0.5)
        during = await asyncio.gather(*meanwhile)
        await until(lambda: ready(stage), 30.0, "ready again")
        await everything_ended_well(stage, {long, short, *during})
        # They waited; none had to be started again, and no task either.
        assert starts == {who: stage.dev.processes.starts(*who) for who in starts}
        assert len(stage.lives(long)) == len(stage.lives(short)) == 1


@pytest.mark.timeout(150)
async def test_postgresql_is_down_for_ten_seconds() -> None:
    await outage(10.0)


@pytest.mark.timeout(400)
async def test_postgresql_is_down_for_two_minutes() -> None:
    await outage(120.0)
