"""Streams of one user cost the others little: few, with shared pages, each waiting its turn."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from libs.store.memory_database import Point
from libs.store.port import StoreUnavailableError
from services.gateway import event_stream, views
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.rows import EventRow
from services.gateway.settings import GatewaySettings
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, a_node, served
from tests.services.gateway.test_events import streaming, take


def test_a_user_follows_hundreds_of_tasks_and_leaves_most_streams_to_others() -> None:
    settings = GatewaySettings(database_url="-", nats_url="-")
    # Following a task takes two.
    assert settings.streams_per_user_max // 2 >= 200
    assert settings.streams_per_user_max * 8 <= settings.streams_max
    assert settings.catch_ups_max < settings.database_pool_max


@pytest.mark.parametrize(
    "harness", [{"streams_max": 2, "streams_per_user_max": 1, "streams_reserved": 1}], indirect=True
)
async def test_administrators_have_streams_that_members_cannot_take(
    harness: GatewayHarness,
) -> None:
    members = [await harness.member(name) for name in ("ann", "bob", "cem")]
    authorized = [{"authorization": f"Bearer {token}"} for token in members]
    await harness.project(a_node("n0"))
    async with served(harness) as url, AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(streaming(url, headers=headers))
            for headers in authorized[:2]
        ]
        for stream in opened:
            await take(stream, 1)
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"{url}/v1/events?follow=1", headers=authorized[2])
        assert (reply.status_code, reply.json()["type"]) == (429, "too-many")
        await take(await stack.enter_async_context(streaming(url)), 1)


@pytest.mark.parametrize("harness", [{"stream_page": 10}], indirect=True)
async def test_streams_of_the_same_events_read_and_encode_them_once(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they begin, and the last page, which is not full, included."""
    total, readers = 35, 40
    await harness.project(*(a_node(f"n{number}") for number in range(total)))
    encoded = 0
    event = views.event

    def counted(row: EventRow) -> Any:
        nonlocal encoded
        encoded += 1
        return event(row)

    monkeypatch.setattr(event_stream.views, "event", counted)
    async with served(harness) as url:

        async def read(begin: int) -> None:
            async with streaming(url, f"?from={begin}") as stream:
                seen = [each.data["position"] for each in await take(stream, total - begin)]
            assert seen == list(range(begin + 1, total + 1))

        async with asyncio.TaskGroup() as group:
            for number in range(readers):
                group.create_task(read(number % 4 * 10))
    assert encoded < 3 * total, f"{encoded} events were encoded for {readers} streams of {total}"


async def test_a_stream_waits_for_its_users_reads_and_not_for_those_of_others() -> None:
    turns = ConcurrencyLimit(total_max=3, each_max=2)
    inside: list[str] = []
    most = 0
    release = asyncio.Event()

    async def enter(user: str) -> None:
        nonlocal most
        async with turns.of(user):
            inside.append(user)
            most = max(most, len(inside))
            await release.wait()
            inside.remove(user)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(enter("ann"))
        await until(lambda: inside == ["ann", "ann"])
        group.create_task(enter("bob"))
        await until(lambda: "bob" in inside)
        release.set()
    assert (inside, most) == ([], 3)
    assert len(turns) == 0


async def test_a_stream_goes_on_after_the_database_was_away(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outage makes neither an open stream nor a new one a defect of the gateway."""
    await harness.project(a_node("n0"), a_node("n1"))
    away = True

    async def fault(point: Point, schema: str) -> None:
        if away and schema == "gateway" and point is Point.BEGIN:
            raise StoreUnavailableError("every connection is busy")

    monkeypatch.setattr(event_stream, "RETRY_SECONDS", 0.01, raising=False)
    async with served(harness) as url, streaming(url, "?from=1") as stream:
        assert [each.id for each in await take(stream, 1)] == ["2"]
        harness.database.fault = fault
        app: Any = harness.gateway.app
        app._parts.live.reread_tables()
        await asyncio.sleep(0.1)
        away = False
        await harness.publish(a_node("n2"))
        assert [each.id for each in await take(stream, 1)] == ["3"]
        away = True
        async with httpx.AsyncClient() as client:
            reply = await client.get(
                f"{url}/v1/events?follow=1", headers={"authorization": f"Bearer {ADMIN_TOKEN}"}
            )
        assert (reply.status_code, reply.json()["type"]) == (503, "unavailable")
    assert "a route failed" not in capsys.readouterr().err
