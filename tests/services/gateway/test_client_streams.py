"""The client library's streams over connections that break: no gap and no repetition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from shiftwork import AsyncClient, Client
from shiftwork.client import streams

from services.gateway.store import drop_old_events
from tests.kit.waiting import until
from tests.services.gateway.gateway_harness import ADMIN_TOKEN, GatewayHarness, a_node, served

Kind = type[Client] | type[AsyncClient]
LAST = "the-last-node"
WAYS = pytest.mark.parametrize("way", ["close", "abort"])
KINDS = pytest.mark.parametrize("kind", [Client, AsyncClient])


class Line:
    """Carries bytes between clients and a server, until it is cut."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.answers: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def mend(self) -> None:
        """Listen, at the same address as before."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self, way: str) -> None:
        """End all connections, as a server that closes them or one that is killed does, and take
        no more of them."""
        assert self._server is not None
        self._server.close()
        for each in self._open:
            each.transport.abort() if way == "abort" else each.close()
        await until(lambda: not self._open)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._open |= {writer, there[1]}
        try:
            await asyncio.gather(_pump(reader, there[1], []), _pump(there[0], writer, self.answers))
        finally:
            self._open -= {writer, there[1]}


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, carried: list[bytes]
) -> None:
    try:
        while data := await source.read(65_536):
            carried.append(data)
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "AGAIN_SECONDS", 0.02)


@asynccontextmanager
async def following(kind: Kind, url: str, **query: Any) -> AsyncIterator[list[int]]:
    """The positions that a client of this kind reads, until the event about ``LAST``."""
    found: list[int] = []

    def takes(event: Any) -> bool:
        found.append(event["position"])
        return LAST not in json.dumps(event["data"])

    async def read() -> None:
        async with AsyncClient(url, ADMIN_TOKEN) as client:
            async for event in client.events.follow(**query):
                if not takes(event):
                    return

    def wait() -> None:
        with Client(url, ADMIN_TOKEN) as client:
            for event in client.events.follow(**query):
                if not takes(event):
                    return

    reading = asyncio.ensure_future(read() if kind is AsyncClient else asyncio.to_thread(wait))
    yield found
    await asyncio.wait_for(reading, 10)


async def positions(harness: GatewayHarness, after: int = 0) -> list[int]:
    """Those of all events."""
    async with harness.client() as admin:
        page = (await admin.get("/v1/events", params={"from": after, "limit": 1000})).json()
    return [each["position"] for each in page["items"]]


@WAYS
@KINDS
async def test_a_stream_goes_on_behind_its_last_event(
    harness: GatewayHarness, kind: Kind, way: str
) -> None:
    async with served(harness) as url:
        line = Line(url)
        await line.mend()
        async with following(kind, line.url, from_="0") as found:
            for number in range(3):
                await harness.project(a_node(f"here-{number}"))
                wanted = await positions(harness)
                await until(lambda wanted=wanted: len(found) >= len(wanted))
                await line.cut(way)
                await harness.project(a_node(f"away-{number}"))
                await line.mend()
            await harness.project(a_node(LAST))
        assert found == await positions(harness)
        await line.cut(way)


@WAYS
@KINDS
async def test_a_stream_of_new_events_misses_none_if_it_breaks_before_the_first(
    harness: GatewayHarness, kind: Kind, way: str
) -> None:
    await harness.project(a_node("old"))
    begin = await harness.position()
    async with served(harness) as url:
        line = Line(url)
        await line.mend()
        async with following(kind, line.url, from_="latest") as found:
            # The stream's first comment.
            await until(lambda: b": shiftwork" in b"".join(line.answers))
            await asyncio.sleep(0.05)
            await line.cut(way)
            await harness.project(a_node("away"))
            await line.mend()
            await harness.project(a_node(LAST))
        assert found == await positions(harness, begin)
        assert len(found) == 2
        await line.cut(way)


@pytest.mark.parametrize("harness", [{"heartbeat_seconds": 0.02}], indirect=True)
@KINDS
async def test_a_quiet_filtered_stream_resumes_after_the_events_of_others_were_pruned(
    harness: GatewayHarness, kind: Kind
) -> None:
    async with served(harness) as url:
        line = Line(url)
        await line.mend()
        async with following(kind, line.url, from_="0", group="quiet") as found:
            await until(lambda: b": shiftwork" in b"".join(line.answers))
            await harness.project(*(a_node(f"n{number}") for number in range(20)))
            last = await harness.position()
            await until(lambda: b"id: %d\n\n" % last in b"".join(line.answers))
            await line.cut("close")
            async with harness.gateway.ports.store.transaction(epoch=1) as tx:
                assert await drop_old_events(tx, kept_max=1, bytes_max=2**40, rows_max=100) > 0
            await line.mend()
            await harness.project(a_node(LAST, group="quiet"))
        assert found == [last + 1]
        await line.cut("close")
