"""The event log over HTTP: pages, streams that resume, many readers, slow readers, WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from libs.contracts import messages as m
from services.gateway.api.deps import Context
from services.gateway.event_stream import Encoded, EventFilter, gone
from services.gateway.problems import GONE, ProblemError
from services.gateway.rows import EventRow
from services.gateway.store import drop_old_events
from services.gateway.tables import TABLES
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import (
    ADMIN_TOKEN,
    GatewayHarness,
    Sent,
    a_node,
    assigned,
    exited,
    served,
    sse,
    state,
)


def context_of(harness: GatewayHarness) -> Context:
    """What the application's routes are given."""
    app: Any = harness.gateway.app
    return app._parts


@asynccontextmanager
async def streaming(
    url: str, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[Sent]]:
    known = {"authorization": f"Bearer {ADMIN_TOKEN}", "accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("GET", f"{url}/v1/events{query}", headers=known | (headers or {})) as reply,
    ):
        assert reply.status_code == 200, await reply.aread()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield sse(reply)


async def take(stream: AsyncIterator[Sent], number: int) -> list[Sent]:
    async with asyncio.timeout(30):
        return [await anext(stream) for _ in range(number)]


async def test_pages_join_to_the_log(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(5)))
    positions: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await admin.get(f"/v1/events?follow=0&limit=2&from=0&cursor={cursor}")).json()
        positions += [event["position"] for event in page["items"]]
        cursor = page["next_cursor"]
    assert positions == [1, 2, 3, 4, 5]
    (last,) = (await admin.get("/v1/events?from=4")).json()["items"]
    assert (last["position"], last["type"], last["task"]) == (5, "node.changed", None)
    assert last["data"]["node"]["gpus"] == 4
    assert last["at"] == "2026-01-01T00:00:01Z"
    assert [e["position"] for e in (await admin.get("/v1/events?from=-2")).json()["items"]] == [
        4,
        5,
    ]
    assert (await admin.get("/v1/events?from=latest")).json()["position"] == 5


async def test_filters_by_task_and_type(harness: GatewayHarness, admin: httpx.AsyncClient) -> None:
    one = (await harness.submitted(admin))["id"]
    two = (await harness.submitted(admin))["id"]
    await harness.project(assigned(one), assigned(two), exited(one), a_node("n0"))

    async def types(query: str) -> list[str]:
        reply = await admin.get(f"/v1/events?{query}")
        return [event["type"] for event in reply.json()["items"]]

    assert await types(f"task={one}") == ["task.submitted", "run.assigned", "run.exited"]
    assert await types("type=run.exited") == ["run.exited"]
    assert await types("type=run") == ["run.assigned", "run.assigned", "run.exited"]
    assert await types("type=exited,node.changed") == ["run.exited", "node.changed"]
    assert await types(f"task={two}&type=run") == ["run.assigned"]
    reply = await admin.get("/v1/events?type=run.vanished")
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "type"
    reply = await admin.get("/v1/events?from=soon")
    assert reply.json()["errors"][0]["field"] == "from"


async def test_a_stream_replays_and_goes_on(harness: GatewayHarness) -> None:
    await harness.project(a_node("n0"), a_node("n1"))
    async with served(harness) as url, streaming(url) as stream:
        assert [each.id for each in await take(stream, 2)] == ["1", "2"]
        await harness.publish(a_node("n2"))
        (live,) = await take(stream, 1)
        assert (live.id, live.data["data"]["node_id"]) == ("3", "n2")
        assert live.data["position"] == 3


async def test_a_stream_resumes_behind_the_last_event(harness: GatewayHarness) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(4)))
    async with served(harness) as url:
        async with streaming(url, headers={"last-event-id": "2"}) as stream:
            assert [each.id for each in await take(stream, 2)] == ["3", "4"]
        async with streaming(url, "?from=3") as stream:
            assert [each.id for each in await take(stream, 1)] == ["4"]
        async with streaming(url, "?from=latest&follow=1") as stream:
            await harness.publish(a_node("n9"))
            assert [each.id for each in await take(stream, 1)] == ["5"]


async def test_readers_that_come_and_go_miss_nothing_and_get_nothing_twice(
    harness: GatewayHarness,
) -> None:
    """Readers cut off at random places put together exactly the log, while it is written."""
    total = 120

    async def write() -> None:
        for number in range(total):
            await harness.publish(a_node(f"n{number}"))
            if number % 7 == 0:
                await asyncio.sleep(0.003)

    async def read(url: str, step: int) -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            after = seen[-1] if seen else 0
            async with streaming(url, f"?from={after}") as stream:
                for _ in range(min(step, total - len(seen))):
                    async with asyncio.timeout(30):
                        seen.append((await anext(stream)).data["position"])
        return seen

    async with served(harness) as url, asyncio.TaskGroup() as group:
        readers = [group.create_task(read(url, step)) for step in (17, 50, total)]
        group.create_task(write())
    for reader in readers:
        assert reader.result() == list(range(1, total + 1))


@pytest.mark.parametrize("harness", [{"stream_pending_max": 3, "stream_page": 5}], indirect=True)
async def test_a_reader_that_falls_behind_reads_the_table(harness: GatewayHarness) -> None:
    async with served(harness) as url, streaming(url) as stream:
        await harness.project(a_node("n0"))
        # One commit brings more events than are kept for a reader.
        await harness.project(*(a_node(f"m{number}") for number in range(40)))
        assert [each.data["position"] for each in await take(stream, 41)] == list(range(1, 42))


@pytest.mark.parametrize("harness", [{"poll_seconds": 0.1}], indirect=True)
async def test_a_process_that_does_not_project_follows_the_log_too(
    harness: GatewayHarness,
) -> None:
    """A second gateway on the same database, never leading, never consuming."""

    other = harness.new_gateway()
    assert other.app is not None
    leading, harness.gateway = harness.gateway, other
    async with asyncio.TaskGroup() as group:
        polling = group.create_task(other.tasks[0]())
        async with served(harness) as url, streaming(url) as stream:
            await harness.publish(a_node("n0"))
            assert [each.id for each in await take(stream, 1)] == ["1"]
            await harness.publish(a_node("n1"), a_node("n2"))
            assert [each.id for each in await take(stream, 2)] == ["2", "3"]
        polling.cancel()
    harness.gateway = leading
    await other.ports.store.close()


async def test_a_deleted_position_is_410_gone(
    harness: GatewayHarness, admin: httpx.AsyncClient
) -> None:
    await harness.project(*(a_node(f"n{number}") for number in range(3)))
    assert await dropped(harness, kept=1) == 2
    for query in ("?from=1", "?from=1&follow=1"):
        reply = await admin.get(f"/v1/events{query}")
        assert reply.status_code == 410
        assert "start from 3" in reply.json()["detail"]
    reply = await admin.get("/v1/events?from=99")
    assert (reply.status_code, "rebuilt" in reply.json()["detail"]) == (410, True)
    assert [e["position"] for e in (await admin.get("/v1/events")).json()["items"]] == [3]


async def dropped(harness: GatewayHarness, kept: int) -> int:
    """Prune the log to so many events; returns how many it forgets."""
    async with harness.gateway.ports.store.transaction(epoch=1) as tx:
        return await drop_old_events(tx, kept_max=kept, bytes_max=2**40, rows_max=1000)


@pytest.mark.parametrize("harness", [{"stream_pending_max": 3, "stream_page": 5}], indirect=True)
async def test_a_stream_ends_as_gone_when_events_are_pruned_before_its_reader_takes_them(
    harness: GatewayHarness,
) -> None:
    live = context_of(harness).live
    await harness.project(a_node("n0"))
    taken: list[int] = []
    free = asyncio.Event()

    async def emit(events: Sequence[Encoded]) -> None:
        taken.extend(position for position, _ in events)
        await free.wait()

    with live.reader("ann", EventFilter()) as reader:
        following = asyncio.create_task(live.follow(reader, 0, emit))
        await until(lambda: taken == [1])
        await harness.project(*(a_node(f"m{number}") for number in range(40)))
        assert await dropped(harness, kept=10) == 31
        free.set()
        with pytest.raises(ProblemError, match="events before 32 are not kept") as found:
            await asyncio.wait_for(following, 10)
    assert found.value.kind is GONE
    assert taken == [1]


@pytest.mark.parametrize("harness", [{"stream_pending_max": 3, "stream_page": 5}], indirect=True)
async def test_a_filtered_stream_goes_on_when_only_events_of_others_were_pruned(
    harness: GatewayHarness,
) -> None:
    """A burst that overflows the reader's queue makes it read the table, from where it stood."""
    live = context_of(harness).live
    taken: list[int] = []

    async def emit(events: Sequence[Encoded]) -> None:
        taken.extend(position for position, _ in events)

    with live.reader("ann", EventFilter(group="quiet")) as reader:
        following = asyncio.create_task(live.follow(reader, 0, emit))
        await until(lambda: live.position_of(reader) == 0)
        await harness.project(*(a_node(f"m{number}") for number in range(40)))
        assert await dropped(harness, kept=10) == 30
        await harness.project(*(a_node(f"q{number}", group="quiet") for number in range(10)))
        await until(lambda: following.done() or len(taken) == 10)
        assert not following.done()
        assert live.position_of(reader) == 50
        following.cancel()
    assert taken == list(range(41, 51))


async def test_positions_have_no_gaps_and_no_fact_enters_twice(harness: GatewayHarness) -> None:
    """Events that are published again (and some that are outdated) leave the log as it is."""
    facts: list[Any] = [
        a_node("n0", 1),
        a_node("n0", 2),
        assigned("t1"),
        state("t1", m.TaskState.STARTING, 2, attempt=1),
        exited("t1"),
    ]
    await harness.project(*facts)
    await harness.publish(*reversed(facts), *facts)
    await harness.project(a_node("last"))
    rows = harness.database.rows(TABLES, EventRow)
    assert sorted(rows) == list(range(1, len(facts) + 2))
    assert len({row.fact for row in rows.values()}) == len(rows)


@pytest.mark.parametrize("harness", [{"streams_per_user_max": 2}], indirect=True)
async def test_streams_are_bounded(harness: GatewayHarness) -> None:
    async with served(harness) as url:
        async with streaming(url) as one, streaming(url) as two:
            await harness.publish(a_node("n0"))
            await take(one, 1)
            await take(two, 1)
            async with httpx.AsyncClient() as client:
                reply = await client.get(
                    f"{url}/v1/events?follow=1",
                    headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
                )
            assert reply.status_code == 429
            assert reply.json()["type"] == "too-many"
            assert reply.headers["retry-after"]
        # Streams that left free their places.
        async with asyncio.timeout(30):
            while True:
                try:
                    async with streaming(url) as stream:
                        await take(stream, 1)
                    break
                except AssertionError:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("harness", [{"heartbeat_seconds": 0.02}], indirect=True)
async def test_a_stream_without_events_sends_its_position(harness: GatewayHarness) -> None:
    async with served(harness) as url, httpx.AsyncClient(timeout=5) as client:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}", "accept": "text/event-stream"}
        async with client.stream("GET", f"{url}/v1/events", headers=headers) as reply:
            seen = 0
            async for line in reply.aiter_lines():
                # The first one says where the stream begins.
                seen += line == "id: 0"
                if seen == 3:
                    break


async def test_streams_end_when_the_gateway_stops(harness: GatewayHarness) -> None:
    polling = asyncio.ensure_future(harness.gateway.tasks[0]())
    async with served(harness) as url, streaming(url) as stream:
        await harness.publish(a_node("n0"))
        await take(stream, 1)
        polling.cancel()
        async with asyncio.timeout(30):
            assert [each async for each in stream] == []


class Socket:
    """A WebSocket client at the ASGI interface: no WebSocket library is needed to test ours."""

    def __init__(self, app: Any, query: str, *, headers: Any = (), protocols: Any = ()) -> None:
        self.sent: list[dict[str, Any]] = []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._app = app
        self._scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/v1/events",
            "raw_path": b"/v1/events",
            "query_string": query.encode(),
            "headers": [(b"host", b"gateway"), *headers],
            "subprotocols": list(protocols),
            "client": ("127.0.0.1", 1),
            "server": ("gateway", 80),
        }

    async def run(self) -> None:
        async def send(message: Any) -> None:
            self.sent.append(message)

        await self._app(self._scope, self._inbox.get, send)

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})


@pytest.mark.parametrize("harness", [{"heartbeat_seconds": 0.02}], indirect=True)
async def test_a_quiet_websocket_says_its_position_if_that_was_requested(
    harness: GatewayHarness,
) -> None:
    query = "type=run.exited&positions=true"
    silent = Socket(harness.gateway.app, "type=run.exited", headers=AUTHORIZED)
    socket = Socket(harness.gateway.app, query, headers=AUTHORIZED)
    async with asyncio.TaskGroup() as group:
        group.create_task(silent.run())
        group.create_task(socket.run())
        await harness.project(*(a_node(f"n{number}") for number in range(3)))
        position = {"type": "websocket.send", "text": '{"position":3}'}
        await until(lambda: position in socket.sent)
        silent.leave()
        socket.leave()
    assert [each["type"] for each in silent.sent] == ["websocket.accept"]


async def test_a_websocket_is_closed_when_events_are_pruned_before_its_reader_takes_them(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = Socket(harness.gateway.app, "", headers=AUTHORIZED)

    async def follow(*_: Any) -> None:
        raise gone(1, "events before 3 are not kept", 3)

    monkeypatch.setattr(context_of(harness).live, "follow", follow)
    await asyncio.wait_for(socket.run(), 10)
    assert socket.sent[-1]["code"] == 1008
    assert "start from 3" in socket.sent[-1]["reason"]


AUTHORIZED = [(b"authorization", f"Bearer {ADMIN_TOKEN}".encode())]


async def test_a_websocket_carries_the_same_events(harness: GatewayHarness) -> None:
    await harness.project(a_node("n0"))
    for socket in (
        Socket(harness.gateway.app, "", headers=AUTHORIZED),
        Socket(harness.gateway.app, "", protocols=["shiftwork", f"shiftwork.bearer.{ADMIN_TOKEN}"]),
    ):
        async with asyncio.TaskGroup() as group:
            group.create_task(socket.run())
            await until(lambda socket=socket: len(socket.sent) >= 2)
            assert socket.sent[0]["type"] == "websocket.accept"
            assert ADMIN_TOKEN not in str(socket.sent[0])
            assert '"position":1' in socket.sent[1]["text"]
            before = await harness.position()
            await harness.project(a_node("n0", before + 1))
            await until(lambda socket=socket: len(socket.sent) >= 3)
            socket.leave()


@pytest.mark.parametrize(
    ("query", "headers"),
    [("", []), ("", [(b"authorization", b"Bearer swt_no")]), ("type=nonsense", AUTHORIZED)],
)
async def test_a_websocket_without_permission_is_closed(
    harness: GatewayHarness, query: str, headers: Any
) -> None:
    socket = Socket(harness.gateway.app, query, headers=headers)
    await socket.run()
    assert [(each["type"], each.get("code")) for each in socket.sent] == [("websocket.close", 1008)]
