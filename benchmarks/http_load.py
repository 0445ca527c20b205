"""Many clients on connections of their own that are kept open, for ``durable_gateway``.

A client here costs as little as Python allows, because it shares the machine with what it measures:
requests are bytes made beforehand, and of an answer only the status and the length are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from benchmarks.harness import BenchmarkError

ANSWER_SECONDS_MAX = 60.0
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


@dataclass
class Answers:
    """What a load got."""

    seconds: list[float] = field(default_factory=list[float])
    statuses: dict[int, int] = field(default_factory=dict[int, int])
    wall_s: float = 0.0

    @property
    def per_second(self) -> float:
        """Answers in a second."""
        return len(self.seconds) / self.wall_s

    def only(self, *expected: int) -> None:
        """BenchmarkError if there were other statuses."""
        if others := {each for each in self.statuses if each not in expected}:
            raise BenchmarkError(f"answers {self.statuses}, expected {expected}: {sorted(others)}")


class Connection(asyncio.Protocol):
    """One kept-open connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        # uvloop's transports are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody answers any more."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BenchmarkError(f"the connection closed: {exc}"))

    def data_received(self, data: bytes) -> None:
        """Take in a part of an answer."""
        received = self._received
        received += data
        head = received.find(HEAD_END)
        if head < 0 or self._answer is None:
            return
        at = received.lower().find(LENGTH, 0, head)
        length = int(received[at + len(LENGTH) : received.find(b"\r", at)]) if at >= 0 else 0
        if len(received) >= head + len(HEAD_END) + length:
            status = int(received[9:12])
            received.clear()
            self._answer.set_result(status)

    async def call(self, request: bytes) -> int:
        """The status of the answer."""
        assert self._transport is not None, "connect first"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


def requests(
    method: str, url: str, paths: Iterable[str], token: str, bodies: Iterable[bytes]
) -> list[bytes]:
    """The bytes of each request."""
    host = url.removeprefix("http://")
    head = f"host: {host}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    return [
        f"{method} {path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
        for path, body in zip(paths, bodies, strict=True)
    ]


async def load(url: str, clients: int, wanted: Sequence[bytes]) -> Answers:
    """All requests by so many clients, each with the next one as soon as it has an answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, host, int(port)))[1] for _ in range(clients)
    ]
    found, left = Answers(), iter(wanted)

    async def work(connection: Connection, left: Iterator[bytes]) -> None:
        for request in left:
            began = time.perf_counter()
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                status = await connection.call(request)
            found.seconds.append(time.perf_counter() - began)
            found.statuses[status] = found.statuses.get(status, 0) + 1

    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(work(connection, left))
    finally:
        found.wall_s = time.perf_counter() - began
        for connection in connections:
            connection.close()
    return found
