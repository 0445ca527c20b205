"""Events to many streams at once, some of which never read, through one gateway process.

    python -m benchmarks.event_fan_out [--streams 1000] [--tasks 100] [--singles 40]

A thousand clients follow ``/v1/events`` with a filter that lets everything through in one half and
one group of two in the other. Batches of tasks make events as fast as the platform makes them; then
single tasks make one event at a time, of which the slowest stream's delay is what counts. Ten more
clients never read. The rate is measured without them and with them, and the gateway's memory after
each. A stream that falls behind reads the log again; every stream has to end with every event that
its filter lets through, once and in order. The floor is one Python process that writes the same
bytes to as many sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from benchmarks.guard import run
from benchmarks.harness import (
    BenchmarkError,
    Http,
    Platform,
    ready_nodes,
    running_platform,
    seconds,
    up_on_fake_nodes,
)
from benchmarks.report import Benchmark, Goal, Report, percentile

GROUPS = ("default", "other")
# Every second stream has the second filter.
FILTERS = ("", f"group={GROUPS[0]}")
STALLED = 10
BENCHMARK = Benchmark(
    name="event_fan_out",
    alias="p8",
    question="How fast do events reach everybody who follows them?",
    method=(
        "1,000 server-sent event streams with filters at one platform on this machine: bursts of"
        " tasks for the rate, single tasks for the delay from publishing to the last stream;"
        " the same with ten more clients that never read. Floor: one Python process that writes the"
        " same bytes to as many sockets."
    ),
    goals=(
        Goal(figure="deliveries_per_s", label="deliveries a second", at_least=50_000.0),
        Goal(figure="one_event_p99_ms", label="one event at all streams, p99", at_most=60.0),
        Goal(figure="stalled_cost_percent", label="cost of stalled readers", at_most=5.0),
        Goal(figure="missed_events", label="events that a stream missed", at_most=0.0),
    ),
    smoke=("--streams", "20", "--tasks", "4", "--singles", "2"),
)
SETTINGS = {"SHIFTWORK_GATEWAY_STREAMS_PER_USER_MAX": "3000"}
FRAME_END = b"\n\n"
STALLED_BUFFER_BYTES = 4096
CONNECTED_AT_ONCE = 50
CAUGHT_UP_SECONDS_MAX = 120.0


@dataclass
class Stream(asyncio.Protocol):
    """One reader: which positions came, and when each was here."""

    request: bytes
    positions: list[int] = field(default_factory=list[int])
    arrived: dict[int, float] = field(default_factory=dict[int, float])
    times_kept: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    _transport: asyncio.Transport | None = None
    _rest: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        # uvloop's transports are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self.request)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server ended the stream."""
        del exc
        self.lost = True

    def data_received(self, data: bytes) -> None:
        """Note the events in it."""
        if not self.opened.is_set():
            if not data.startswith(b"HTTP/1.1 200"):
                raise BenchmarkError(data[:200].decode(errors="replace"))
            self.opened.set()
        now = time.time()
        *frames, self._rest = (self._rest + data).split(FRAME_END)
        for frame in frames:
            at = frame.find(b"id: ")
            if at < 0 or b"data: " not in frame:
                continue
            position = int(frame[at + 4 :].partition(b"\n")[0])
            self.positions.append(position)
            if self.times_kept:
                self.arrived[position] = now

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()


def request_of(platform: Platform, query: str) -> bytes:
    """The bytes that ask for a stream."""
    host = platform.url.removeprefix("http://")
    head = f"host: {host}\r\nauthorization: Bearer {platform.token}\r\naccept: text/event-stream"
    return f"GET /v1/events?{query} HTTP/1.1\r\n{head}\r\n\r\n".encode()


@asynccontextmanager
async def following(platform: Platform, count: int) -> AsyncGenerator[list[Stream]]:
    """So many streams from now on; every second one of one group alone."""
    host, _, port = platform.url.removeprefix("http://").partition(":")
    loop = asyncio.get_running_loop()
    found = [Stream(request_of(platform, FILTERS[each % 2])) for each in range(count)]
    gate = asyncio.Semaphore(CONNECTED_AT_ONCE)

    async def open_one(stream: Stream) -> None:
        async with gate, asyncio.timeout(CAUGHT_UP_SECONDS_MAX):
            await loop.create_connection(lambda: stream, host, int(port))
            await stream.opened.wait()

    try:
        await asyncio.gather(*map(open_one, found))
        yield found
    finally:
        for stream in found:
            stream.close()


@asynccontextmanager
async def stalled(platform: Platform, count: int) -> AsyncGenerator[None]:
    """So many clients that ask for every event and never read."""
    host, _, port = platform.url.removeprefix("http://").partition(":")
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_BUFFER_BYTES)
            made.connect((host, int(port)))
            made.sendall(request_of(platform, ""))
            sockets.append(made)
        yield
    finally:
        for made in sockets:
            made.close()


async def burst(http: Http, tasks: int, name: str) -> None:
    """Tasks of both groups, submitted as one batch, and all of their events."""
    wanted = [
        {"name": f"{name}-{each}", "group": GROUPS[each % 2], "command": ["/bin/true"]}
        for each in range(tasks)
    ]
    status, answer = await http.call("POST", "/v1/tasks:batch", {"tasks": wanted})
    if status != 200:
        raise BenchmarkError(f"POST /v1/tasks:batch: {status} {answer}")
    await http.until([item["task"]["id"] for item in answer["items"]], seconds=120)


async def log_of(http: Http, after: int, query: str) -> list[tuple[int, float]]:
    """Position and time of every event after a position that a filter lets through, by the log."""
    found: list[tuple[int, float]] = []
    while items := (await http.get(f"/v1/events?{query}&from={after}&limit=500"))["items"]:
        found += [(item["position"], seconds(item["at"])) for item in items]
        after = items[-1]["position"]
    return found


async def caught_up(streams: Sequence[Stream], last: Sequence[int]) -> None:
    """Wait until every stream has the position that is last for its filter."""
    async with asyncio.timeout(CAUGHT_UP_SECONDS_MAX):
        for number, stream in enumerate(streams):
            while not stream.positions or stream.positions[-1] < last[number % 2]:
                if stream.lost:
                    raise BenchmarkError(f"stream {number} ended at {stream.positions[-1:]}")
                await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Burst:
    """What one burst gave."""

    per_second: float
    missed: int
    memory_mib: float


async def measured_burst(
    platform: Platform, http: Http, streams: Sequence[Stream], tasks: int, name: str
) -> Burst:
    """Deliveries a second from the first event to the last at the last stream."""
    for stream in streams:
        stream.positions.clear()
    after = (await http.get("/v1/events?limit=1&from=latest"))["position"]
    began = time.perf_counter()
    await burst(http, tasks, name)
    expected = [[at for at, _ in await log_of(http, after, each)] for each in FILTERS]
    await caught_up(streams, [each[-1] for each in expected])
    took = time.perf_counter() - began
    missed = sum(
        len(set(expected[number % 2]) ^ set(stream.positions))
        + (stream.positions != sorted(set(stream.positions)))
        for number, stream in enumerate(streams)
    )
    delivered = sum(len(stream.positions) for stream in streams)
    return Burst(delivered / took, missed, platform.pss_mib().get("services", 0.0))


async def delays(http: Http, streams: Sequence[Stream], singles: int) -> list[float]:
    """Of single submissions: seconds from an event's time to each stream that has it."""
    for stream in streams:
        stream.times_kept = True
    after = (await http.get("/v1/events?limit=1&from=latest"))["position"]
    for number in range(singles):
        await http.submit(name=f"single-{number}", group=GROUPS[0], command=["/bin/true"])
        await asyncio.sleep(0.3)
    await asyncio.sleep(1.0)
    return [
        stream.arrived[position] - at
        for position, at in await log_of(http, after, FILTERS[0])
        for stream in streams
        if position in stream.arrived
    ]


def floor_per_second(streams: int, frame: bytes, rounds: int) -> float:
    """Deliveries a second of one process that writes to as many sockets, and reads them."""
    pairs = [socket.socketpair() for _ in range(streams)]
    began = time.perf_counter()
    for _ in range(rounds):
        for writer, _ in pairs:
            writer.send(frame)
        for _, reader in pairs:
            reader.recv(65536)
    took = time.perf_counter() - began
    for pair in pairs:
        for each in pair:
            each.close()
    return rounds * streams / took


async def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--bursts", type=int, default=3)
    parser.add_argument("--singles", type=int, default=40)
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.streams:,} streams, bursts of {asked.tasks} tasks",
        BENCHMARK.goals,
    )
    groups: dict[str, int] = dict.fromkeys(GROUPS, 50)
    with running_platform(up_on_fake_nodes(groups), SETTINGS) as platform:
        platform.start()
        http = Http(platform.url, platform.token)
        try:
            await ready_nodes(http, sum(groups.values()))
            async with following(platform, asked.streams) as streams:
                await measured_burst(platform, http, streams, asked.tasks, "warm")
                # In turns, because the machine's pace changes.
                free: list[Burst] = []
                beside: list[Burst] = []
                for number in range(asked.bursts):
                    name = f"burst-{number}"
                    free.append(await measured_burst(platform, http, streams, asked.tasks, name))
                    async with stalled(platform, STALLED):
                        beside.append(
                            await measured_burst(platform, http, streams, asked.tasks, f"{name}-s")
                        )
                times = await delays(http, streams, asked.singles)
            [event] = (await http.get("/v1/events?limit=1"))["items"]
        finally:
            http.close()
    rate, with_stalled = (
        statistics.median(each.per_second for each in found) for found in (free, beside)
    )
    report.measured |= {
        "deliveries_per_s": round(rate),
        "stalled_deliveries_per_s": round(with_stalled),
        "stalled_cost_percent": round(100 * (1 - with_stalled / rate), 1),
        "one_event_p50_ms": round(percentile(times, 0.5) * 1000, 1),
        "one_event_p99_ms": round(percentile(times, 0.99) * 1000, 1),
        "missed_events": sum(each.missed for each in (*free, *beside)),
        "memory_mib": round(free[-1].memory_mib, 1),
        "stalled_memory_mib": round(beside[-1].memory_mib, 1),
    }
    frame = b"id: 1\ndata: " + json.dumps(event).encode() + FRAME_END
    report.floor["deliveries_per_s"] = round(floor_per_second(asked.streams, frame, 20))
    report.publish()


if __name__ == "__main__":
    run(main)
