"""Gateway processes on one database learn of each other's commits by hints, and without them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from libs.bus.memory_broker import Faults
from libs.bus.port import BusError
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope
from libs.service.definition import Service
from services.gateway import store as rows_of
from services.gateway.browser_sessions import COOKIE, begin
from services.gateway.event_stream import Encoded, EventFilter
from services.gateway.hints import ROUTE
from services.gateway.rows import EventHeadRow, EventRow, TaskRow
from services.gateway.store import HEAD
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import GatewayHarness, Sent, a_node, served
from tests.services.gateway.test_events import streaming, take

# Nothing here waits for a poll that comes so seldom.
SELDOM = {"poll_seconds": 10.0, "hint_gap_seconds": 0.0}
ONLY_HINTS = pytest.mark.parametrize("harness", [SELDOM], indirect=True)
ONLY_POLLS = pytest.mark.parametrize("harness", [{**SELDOM, "poll_seconds": 0.1}], indirect=True)
# What a hint, and the read that follows it, take at most; and how long a reader that gets none
# waits in vain.
SOON = 5.0
IN_VAIN = 0.5


def listening(harness: GatewayHarness) -> int:
    """How many processes of the gateway receive hints."""
    return sum(pattern == ROUTE.subject for pattern, _ in harness.broker.listeners)


@asynccontextmanager
async def another(harness: GatewayHarness) -> AsyncIterator[Service]:
    """A second process of the gateway: it neither leads nor consumes, and has read the log."""
    other = harness.new_gateway()
    tasks = [asyncio.ensure_future(task()) for task in other.tasks]
    try:
        # It listens from now on, and knows the log's end.
        await until(lambda: listening(harness) == 2)
        async with other.ports.store.transaction() as tx:
            await rows_of.head(tx)
        await asyncio.sleep(0.05)
        yield other
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await other.ports.store.close()


@asynccontextmanager
async def stream_of(
    harness: GatewayHarness, gateway: Service
) -> AsyncIterator[AsyncIterator[Sent]]:
    """A stream of events that this process serves."""
    leading, harness.gateway = harness.gateway, gateway
    async with served(harness) as url, streaming(url) as stream:
        harness.gateway = leading
        yield stream


async def arrives(stream: AsyncIterator[Sent], seconds: float) -> bool:
    """True if an event comes within this time."""
    try:
        async with asyncio.timeout(seconds):
            await anext(stream)
    except TimeoutError:
        return False
    return True


@ONLY_HINTS
async def test_an_event_is_streamed_by_another_process_without_a_poll(
    harness: GatewayHarness,
) -> None:
    async with another(harness) as other, stream_of(harness, other) as stream:
        for number in range(5):
            began = time.monotonic()
            await harness.publish(a_node(f"n{number}"))
            assert await arrives(stream, SOON)
            assert time.monotonic() - began < SOON


@ONLY_POLLS
async def test_an_event_whose_hint_is_lost_comes_with_the_next_poll(
    harness: GatewayHarness,
) -> None:
    harness.broker.faults = Faults(lose_telemetry=1.0)
    async with another(harness) as other, stream_of(harness, other) as stream:
        await harness.publish(a_node("n0"))
        assert [each.id for each in await take(stream, 1)] == ["1"]


@ONLY_HINTS
async def test_without_hints_and_without_polls_nothing_comes(harness: GatewayHarness) -> None:
    """The defect that the two tests above find."""
    harness.broker.faults = Faults(lose_telemetry=1.0)
    async with another(harness) as other, stream_of(harness, other) as stream:
        await harness.publish(a_node("n0"))
        assert not await arrives(stream, IN_VAIN)


@pytest.mark.parametrize("harness", [{**SELDOM, "stream_page": 3}], indirect=True)
async def test_more_events_than_a_page_are_read_after_one_hint(harness: GatewayHarness) -> None:
    harness.broker.faults = Faults(lose_telemetry=1.0)
    async with another(harness) as other, stream_of(harness, other) as stream:
        await harness.project(*(a_node(f"n{number}") for number in range(10)))
        harness.broker.faults = Faults()
        await harness.publish(a_node("last"))
        found = await take(stream, 11)
        assert [each.id for each in found] == [str(number) for number in range(1, 12)]


@pytest.mark.parametrize("harness", [{**SELDOM, "auth_cache_seconds": 300.0}], indirect=True)
async def test_a_token_that_one_process_revokes_is_refused_by_the_others_at_once(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    async with another(harness) as other:
        assert other.app is not None
        there = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=other.app),
            base_url="http://other",
            headers=ann.headers,
        )
        async with there:
            assert (await there.get("/v1/whoami")).status_code == 200
            listed = (await ann.get("/v1/tokens")).json()["items"]
            assert (await ann.delete(f"/v1/tokens/{listed[0]['id']}")).status_code == 204

            async def is_refused() -> bool:
                return (await there.get("/v1/whoami")).status_code == 401

            await until(is_refused)


@pytest.mark.parametrize("harness", [{**SELDOM, "auth_cache_seconds": 300.0}], indirect=True)
async def test_a_session_that_one_process_ends_is_over_for_the_others_at_once(
    harness: GatewayHarness, ann: httpx.AsyncClient
) -> None:
    async with harness.gateway.ports.store.transaction() as tx:
        await begin(
            tx, harness.settings, "secret", "session", user="ann", address="", by="password"
        )
    async with another(harness) as other:
        assert other.app is not None
        there = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=other.app),
            base_url="http://other",
            cookies={COOKIE: "secret"},
        )
        async with there:
            assert (await there.get("/v1/whoami")).status_code == 200
            assert (await ann.delete("/v1/sessions/session")).status_code == 204

            async def is_refused() -> bool:
                return (await there.get("/v1/whoami")).status_code == 401

            await until(is_refused)


@pytest.mark.parametrize("harness", [{**SELDOM, "stream_page": 3}], indirect=True)
@pytest.mark.parametrize("where", ["in this process", "in another"])
async def test_pages_are_read_again_when_the_owner_of_their_events_becomes_known(
    harness: GatewayHarness, where: str
) -> None:
    """A page of ann's events is full without the event whose task is submitted later."""
    await harness.project(*(a_node(f"n{number}") for number in range(5)))
    store = harness.gateway.ports.store
    async with another(harness) as other:
        app: Any = (harness.gateway if where == "in this process" else other).app
        live = app._parts.live
        if where == "in this process":
            # Its own hints reach it, too; it does without.
            harness.broker.faults = Faults(lose_telemetry=1.0)

        async def of_ann() -> list[int]:
            found: list[int] = []

            async def emit(events: Sequence[Encoded]) -> None:
                found.extend(position for position, _ in events)

            with live.reader("ann", EventFilter(owner="ann")) as reader:
                following = asyncio.create_task(live.follow(reader, 0, emit))
                await until(lambda: live.position_of(reader) is not None)
                following.cancel()
            return found

        async def rewrite(owner: str, *positions: int) -> None:
            async with store.transaction(epoch=1) as tx:
                ends = await rows_of.head(tx)
                rows = [await tx.get(EventRow, each) for each in positions]
                tx.put(ends, *(replace(row, owner=owner) for row in rows if row is not None))

        await rewrite("ann", 2, 3, 4, 5)
        assert await of_ann() == [2, 3, 4, 5]
        await rewrite("ann", 1)

        async def is_there() -> bool:
            return await of_ann() == [1, 2, 3, 4, 5]

        await until(is_there)


@pytest.mark.parametrize("harness", [{**SELDOM, "auth_cache_seconds": 300.0}], indirect=True)
async def test_a_changed_team_counts_in_the_other_processes_at_once(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    headers = {"authorization": f"Bearer {await harness.member('bob', team='vision')}"}
    async with another(harness) as other:
        transport = httpx.ASGITransport(app=cast("Any", other.app))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://other", headers=headers
        ) as there:
            assert (await there.get("/v1/whoami")).json()["default_priority"] != "low"
            body = {"default_priority": "low"}
            assert (await admin.patch("/v1/teams/vision", json=body)).status_code == 200

            async def is_known() -> bool:
                return (await there.get("/v1/whoami")).json()["default_priority"] == "low"

            await until(is_known)


@ONLY_HINTS
async def test_a_process_listens_again_soon_after_the_bus_was_away(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(harness.gateway.ports.bus)
    listen, refused = kind.listen, list[str]()

    def away_once(bus: Any, subject: str) -> Any:
        if not refused:
            refused.append(subject)
            raise BusError("away")
        return listen(bus, subject)

    monkeypatch.setattr(kind, "listen", away_once)
    async with another(harness) as other, stream_of(harness, other) as stream:
        assert refused == [ROUTE.subject]
        await harness.publish(a_node("n0"))
        assert await arrives(stream, SOON)


@pytest.mark.parametrize("writes", ["on_lead", "a first commit"])
async def test_a_new_leader_says_that_it_has_changed_events_of_an_earlier_one(
    tmp_path: Path, writes: str
) -> None:
    """Also together with new events, and when a process leads again after another one."""
    harness = GatewayHarness(tmp_path, SELDOM)
    hints: list[m.GatewayHint] = []

    async def listen() -> None:
        async with harness.connection("gateway").listen(ROUTE.subject) as received:
            async for envelope in received:
                assert isinstance(envelope.message, m.GatewayHint)
                hints.append(envelope.message)

    listener = asyncio.ensure_future(listen())
    gateways = [harness.new_gateway(), harness.new_gateway()]
    tasks = [asyncio.ensure_future(run()) for each in gateways for run in each.tasks]
    written = 0
    try:
        await until(lambda: listening(harness) == 3)
        for gateway in (*gateways, gateways[0]):
            store = gateway.ports.store
            leadership = await store.lead()
            assert gateway.on_lead is not None
            await gateway.on_lead(leadership.epoch)
            if writes == "a first commit" and written:
                async with store.transaction(epoch=leadership.epoch) as tx:
                    old = await tx.get(EventRow, written)
                    assert old is not None
                    at_end = written + 1
                    new = replace(old, position=at_end, fact=f"f{at_end}")
                    tx.put(replace(old, owner="ann"), new, EventHeadRow(HEAD, at_end, 1))
                written += 1
            if written:
                await until(lambda: bool(hints))
                assert hints[0].rewritten, (writes, hints)
            async with store.transaction(epoch=leadership.epoch) as tx:
                # With their tasks, the next leader makes their owners known.
                rows = [
                    EventRow(n, "run.exited", f"f{n}", f"t{n}", 1, tx.now, {})
                    for n in range(written + 1, written + 4)
                ]
                tx.put(*rows, EventHeadRow(HEAD, written + 3, 1))
                if writes == "on_lead":
                    tx.put(*(TaskRow(each.task_id, owner="ann") for each in rows))
            written += 3
            await until(lambda end=written: any(each.position == end for each in hints))
            assert not hints[-1].rewritten
            hints.clear()
            await leadership.release()
    finally:
        for each in (*tasks, listener):
            each.cancel()
        await asyncio.gather(*tasks, listener, return_exceptions=True)
        for gateway in gateways:
            await gateway.ports.store.close()


@pytest.mark.parametrize("harness", [{**SELDOM, "hint_gap_seconds": 0.2}], indirect=True)
async def test_many_commits_are_few_hints(harness: GatewayHarness) -> None:
    hints: list[Envelope] = []

    async def count() -> None:
        async with harness.connection("gateway").listen(ROUTE.subject) as received:
            async for envelope in received:
                hints.append(envelope)  # noqa: PERF401 - read while it grows

    counting = asyncio.ensure_future(count())
    await until(lambda: listening(harness) == 2)
    began = time.monotonic()
    for number in range(30):
        await harness.project(a_node(f"n{number}"))

    def positions() -> list[int]:
        return [each.message.position for each in hints if isinstance(each.message, m.GatewayHint)]

    await until(lambda: 30 in positions())
    counting.cancel()
    assert positions() == sorted(positions())
    # One at once, then one in each gap.
    assert len(hints) <= 2 + (time.monotonic() - began) / 0.2
