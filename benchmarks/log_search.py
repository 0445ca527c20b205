"""How long a search of kept output takes, how much memory, and what live readers notice of it.

    python -m benchmarks.log_search [--gigabytes 10] [--ranks 8]

The outputs are generated into log-collector's own archive. Pages are read as its query reads them,
two searches at a time: one rank by rank, one merged by time. Beside them the collector copies the
output of a rank that writes a line every 20 ms; the delay is from the write to the chunk for live
readers. The floor of a delay is the same without a search, that of a search one read of all bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from benchmarks.guard import run
from benchmarks.report import Benchmark, Goal, Report, spread
from libs.bus.port import Bus
from libs.contracts.envelope import Envelope
from libs.contracts.messages import LogChunk, Placement, ReadLogLines, ReadLogLinesReply
from libs.service.clock import SystemClock
from libs.service.definition import Ports, Service
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import Postgres
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.port import Archive, Write
from services.log_collector.domain import Address as RankAddress
from services.log_collector.domain import OutputKey, Timestamp
from services.log_collector.main import WIRING, build
from services.log_collector.settings import LogCollectorSettings
from services.log_collector.sources.files import output_path
from services.log_collector.store import OutputRow, RunRow
from services.log_collector.tables import TABLES

MEBIBYTE = 1_048_576
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
LINE = (
    b"2026-11-01 12:00:00 INFO train step=%08d loss=0.12345678 lr=0.0003 rank=%03d tokens=1048576\n"
)
NEEDLE = b"RuntimeError: CUDA error: an illegal memory access was encountered\n"
PATTERN = r"RuntimeError: CUDA \w+"
BENCHMARK = Benchmark(
    name="log_search",
    alias="logs",
    question="How long does a search of 10 GB of output take, and what do others notice of it?",
    method=(
        "10 GB of 8 ranks, two searches at a time, by rank and by time, page by page, while a rank"
        " that writes every 20 ms is followed. Floors: one read of all bytes; no search."
    ),
    goals=(
        Goal(figure="search_s", label="both searches", at_most=120.0),
        Goal(figure="memory_mib", label="memory more while they run", at_most=64.0),
        Goal(figure="page_max_ms", label="longest page", at_most=2_500.0),
        Goal(figure="live_p99_ms", label="delay of a followed line, p99", at_most=250.0),
    ),
    smoke=("--gigabytes", "0.05", "--seconds", "1"),
)


@dataclass
class Delays:
    """The only thing that the collector sends: chunks, whose lines have the time of writing."""

    seconds: list[float] = field(default_factory=list[float])

    async def send_telemetry(self, envelope: Envelope) -> None:
        """Note how old the lines of a chunk are."""
        now, chunk = time.monotonic_ns(), cast("LogChunk", envelope.message)
        self.seconds += [(now - int(line)) / 1e9 for line in chunk.data.split()]


async def fill(archive: Archive, ranks: int, size: int) -> list[OutputRow]:
    """Write the outputs of one attempt, a mebibyte at a time, in steps of 50 ms."""
    lines = MEBIBYTE // len(LINE % (0, 0))
    rows: list[OutputRow] = []
    for rank in range(ranks):
        key, written, stamps = OutputKey("t1", 1, rank), 0, 0
        while written < size:
            data = b"".join(LINE % (written + number, rank) for number in range(lines))
            data += NEEDLE if written % (64 * MEBIBYTE) < MEBIBYTE else b""
            at = [BEGAN + timedelta(milliseconds=50 * (stamps + number)) for number in range(20)]
            step = len(data) // 20
            times = [Timestamp(written + step * number, each) for number, each in enumerate(at)]
            await archive.write([Write(key, written, data, times, stamps)], epoch=0)
            written, stamps = written + len(data), stamps + 20
        rows.append(OutputRow("t1", 1, rank, written, False, True, BEGAN, timestamps=stamps))
    return rows


@asynccontextmanager
async def service(folder: Path, delays: Delays) -> AsyncGenerator[tuple[Service, SqlStore]]:
    """log-collector on a database and an archive of its own."""
    credentials = ensure_credentials(folder)
    server = Postgres(folder, credentials)
    await server.start()
    try:
        await server.prepare()
        address = Address(
            server.url("log_collector"), credentials.postgres_password("log_collector")
        )
        await upgrade(address, TABLES, WIRING.migrations)
        store = SqlStore(address, TABLES, clock=SystemClock(), source="benchmark", new_id=str)
        settings = LogCollectorSettings(
            database_url="-", nats_url="-", runs_dir=folder / "runs", logs_dir=folder / "logs"
        )
        try:
            ports = Ports(store=store, bus=cast("Bus", delays), clock=SystemClock())
            yield build(settings, ports), store
        finally:
            await store.close()
    finally:
        await server.stop()
        server.remove_temporary()


@asynccontextmanager
async def followed(made: Service, folder: Path) -> AsyncGenerator[None]:
    """Copy the output of a rank that writes its time every 20 ms."""
    path = output_path(folder / "runs", RankAddress(OutputKey("t2", 1, 0), "n0"))
    path.parent.mkdir(parents=True)
    over = threading.Event()

    def write() -> None:
        with path.open("ab", buffering=0) as file:
            while not over.wait(0.02):
                file.write(b"%d\n" % time.monotonic_ns())

    copy = next(each for each in made.loops if each.name == "copy")

    async def copy_on() -> None:
        while not over.is_set():
            pause = await copy.step(0) or 0.0
            await asyncio.sleep(pause)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    task = asyncio.create_task(copy_on())
    try:
        yield
    finally:
        over.set()
        writer.join()
        await task


async def search(made: Service, *, by_time: bool) -> tuple[list[float], int, int]:
    """Seconds of each page of a search, the lines that it found and the bytes it searched."""
    seconds: list[float] = []
    found = searched = 0
    after = ""
    while True:
        began = time.perf_counter()
        query = ReadLogLines(task_id="t1", pattern=PATTERN, by_time=by_time, after=after)
        reply = cast("ReadLogLinesReply", await made.queries[ReadLogLines](query))
        seconds.append(time.perf_counter() - began)
        assert reply.refusal is None, reply.refusal
        found, searched = found + len(reply.lines), searched + reply.searched_bytes
        if not reply.more:
            return seconds, found, searched
        after = reply.end


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(gigabytes: float, ranks: int, quiet_seconds: float, report: Report) -> None:
    """Fill, follow without a search, then with two."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-logs-"))
    delays = Delays()
    try:
        async with service(folder, delays) as (made, store):
            archive = FileArchive(folder / "logs")
            rows = await fill(archive, ranks, int(gigabytes * 1e9 / ranks))
            places = tuple(
                Placement(rank=rank, role="worker", node_id="n0") for rank in range(ranks)
            )
            live = Placement(rank=0, role="worker", node_id="n0")
            async with store.transaction() as tx:
                tx.put(RunRow("t1", 1, places, exited_at=BEGAN, collected=True), *rows)
                tx.put(RunRow("t2", 1, (live,), exited_at=None, collected=False))
            size = sum(row.size for row in rows)
            began = time.perf_counter()
            await read_all(archive, rows)
            report.floor["search_s"] = round(time.perf_counter() - began, 2)
            assert made.on_lead is not None
            leadership = await store.lead()
            await made.on_lead(leadership.epoch)
            async with followed(made, folder):
                await asyncio.sleep(0.5)
                delays.seconds.clear()
                await asyncio.sleep(quiet_seconds)
                report.floor |= spread(delays.seconds, "live")
                delays.seconds.clear()
                before, began = peak_mib(), time.perf_counter()
                searches = await asyncio.gather(
                    search(made, by_time=False), search(made, by_time=True)
                )
                elapsed = time.perf_counter() - began
                await asyncio.sleep(0.2)
            needles = {found for _, found, _ in searches}
            assert len(needles) == 1, "both orders have the same lines"
            pages = [each for seconds, _, _ in searches for each in seconds]
            report.measured |= {
                "search_s": round(elapsed, 2),
                "mb_per_s": round(2 * size / elapsed / 1e6),
                "memory_mib": round(peak_mib() - before, 1),
                "lines_found": needles.pop(),
                "pages": len(pages),
            }
            report.measured |= spread(pages, "page") | spread(delays.seconds, "live")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def read_all(archive: Archive, rows: list[OutputRow]) -> None:
    """Read every byte once."""
    for row in rows:
        key = OutputKey(row.task_id, row.attempt, row.rank)
        for offset in range(0, row.size, MEBIBYTE):
            await archive.read(key, offset, MEBIBYTE)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of following without a search")
    asked: Any = parser.parse_args()
    report = Report(BENCHMARK, f"{asked.gigabytes:g} GB of {asked.ranks} ranks", BENCHMARK.goals)
    asyncio.run(measure(asked.gigabytes, asked.ranks, asked.seconds, report))
    report.publish()


if __name__ == "__main__":
    run(main)
