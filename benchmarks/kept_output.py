"""How fast output is kept, how soon it is seen, and how soon any part of it is found again.

    python -m benchmarks.kept_output [--megabytes 2000] [--streams 1000] [--gigabytes 10]
        [--parts firehose,tail,seek]

The collector is a process of its own, with the real archive and database; ranks are files that
another process writes, as the process runtime has them. First eight ranks write without a pause and
the collector is killed three times (SIGKILL): its processor time until everything is stored and
compressed, and a comparison of every byte. Then 1,000 ranks write ten lines a second: the time from
writing a line to its publication for live readers. Then reads of 64 KiB at random places of an
output of 10 GB, each by an archive that has nothing in memory.

Floors, in the same run: the same bytes copied, synced and compressed by a plain loop; one file
that is polled every 50 ms; one ``pread`` of the same files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import zstandard

from benchmarks.guard import run
from benchmarks.harness import BenchmarkError, connected
from benchmarks.report import Benchmark, Goal, Report, percentile, spread
from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.contracts.envelope import Envelope
from libs.contracts.messages import (
    ExitKind,
    LogChunk,
    Placement,
    RunExit,
    RunExited,
    RunStarted,
)
from libs.service.clock import SystemClock
from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.run import collect_rarely
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import DATABASE, Postgres
from services.log_collector.archives.files import SEGMENT_BYTES, FileArchive
from services.log_collector.archives.port import Segment
from services.log_collector.domain import Address as RankAddress
from services.log_collector.domain import OutputKey
from services.log_collector.main import WIRING, build
from services.log_collector.settings import LogCollectorSettings
from services.log_collector.sources.files import output_path
from services.log_collector.tables import TABLES

BENCHMARK = Benchmark(
    name="kept_output",
    alias="p9",
    question="How fast is output kept, how soon is it seen, and how soon is a part of it found?",
    method=(
        "Eight ranks that write without a pause, the collector killed three times: processor time"
        " until everything is stored and compressed, every byte compared. 1,000 ranks with ten"
        " lines a second: from the write to the publication. Reads at random places of 10 GB."
        " Floors: a plain loop that copies, syncs and compresses; one polled file; one pread."
    ),
    goals=(
        Goal(figure="stored_mb_per_core_s", label="stored and compressed", at_least=150.0),
        Goal(figure="lost_bytes", label="bytes lost or changed, collector killed", at_most=0.0),
        Goal(figure="tail_p99_ms", label="a line, written to published, p99", at_most=150.0),
        Goal(figure="tail_cores", label="processor, 10,000 lines a second", at_most=0.5),
        Goal(figure="seek_p99_ms", label="a read in 10 GB, p99", at_most=20.0),
    ),
    smoke=(
        "--megabytes",
        "24",
        "--streams",
        "20",
        "--seconds",
        "2",
        "--gigabytes",
        "0.2",
    ),
)
# What is measured, and the beginning of the names of its figures.
PARTS = {"firehose": ("stored", "lost"), "tail": ("tail",), "seek": ("seek",)}
FIREHOSES, KILLS, SEEKS = 8, 3, 200
SEEK_BYTES = 65_536
LINES_PER_SECOND = 10
POLL_SECONDS = 0.05
STORED_SECONDS_MAX = 600.0
MB = 1_000_000


def lines(count: int, seed: int) -> bytes:
    """Lines as training writes them."""
    rng = random.Random(seed)
    return b"".join(
        b"2026-11-24 10:%02d:%02d step %d loss %.5f lr 0.0001 grad_norm %.4f tokens/s %d\n"
        % (
            number // 60 % 60,
            number % 60,
            number,
            rng.random(),
            rng.random() * 3,
            rng.randint(10_000, 20_000),
        )
        for number in range(count)
    )


@dataclass(frozen=True)
class Place:
    """The folders and the database of one measurement."""

    folder: Path
    url: str
    password: str
    task: str

    @property
    def runs(self) -> Path:
        """Where ranks write."""
        return self.folder / "runs"

    @property
    def logs(self) -> Path:
        """Where output is kept."""
        return self.folder / "logs"

    def source(self, rank: int) -> Path:
        """The file that a rank writes."""
        return output_path(self.runs, RankAddress(OutputKey(self.task, 1, rank), "n0"))


async def collect(place: Place, ranks: int) -> None:
    """Be the collector until killed; prints a line for each second."""
    store = SqlStore(
        Address(place.url, place.password),
        TABLES,
        clock=SystemClock(),
        source="benchmark",
        new_id=str,
    )
    bus = MemoryBus(MemoryBroker(random.Random(1)), "log_collector")
    delays: list[float] = []

    async def published(envelope: Envelope) -> None:
        message = envelope.message
        # A piece may end within a line, whose rest comes with the next one.
        if isinstance(message, LogChunk) and message.data.endswith(b"\n"):
            last = message.data.rstrip(b"\n").rpartition(b"\n")[2]
            if last.startswith(b"at "):
                delays.append(time.time_ns() / 1e9 - float(last.split()[1]))

    bus.send_telemetry = published  # type: ignore[method-assign]
    settings = LogCollectorSettings(
        database_url="-", nats_url="-", runs_dir=place.runs, logs_dir=place.logs, seal_share=1.0
    )
    service = build(settings, Ports(store, bus, SystemClock()))
    leadership = await store.lead()
    placements = tuple(
        Placement(rank=rank, role="worker", role_index=rank, node_id="n0") for rank in range(ranks)
    )
    now = datetime.now(UTC)
    start = RunStarted(
        task_id=place.task, attempt=1, started_at=now, placements=placements, owner="ann"
    )
    await handle(service, leadership.epoch, start)
    assert service.on_lead is not None
    await service.on_lead(leadership.epoch)
    collect_rarely()
    async with asyncio.TaskGroup() as group:
        for loop in service.loops:
            group.create_task(turn(loop, leadership.epoch))
        while True:
            await asyncio.sleep(0.2)
            if (place.folder / "ended").exists():
                ended = RunExit(attempt=1, kind=ExitKind.OK, exited_at=now)
                await handle(
                    service,
                    leadership.epoch,
                    RunExited(
                        task_id=place.task,
                        attempt=1,
                        exit=ended,
                        placements=placements,
                        owner="ann",
                    ),
                )
            print(json.dumps({"delays": delays}), flush=True)
            delays.clear()


async def handle(service: Service, epoch: int, event: Any) -> None:  # noqa: ANN401 - any event
    """Let the service record an event."""
    async with service.ports.store.transaction(epoch=epoch) as tx:
        await service.handlers[type(event)](tx, event)


async def turn(loop: Loop, epoch: int) -> None:
    """Run a loop as the runner does."""
    while True:
        pause = await loop.step(epoch)
        await loop.wake.wait(loop.tick_seconds if pause is None else pause)


class Child:
    """A collector process."""

    def __init__(self, place: Place, ranks: int) -> None:
        self.cpu = 0.0
        self.delays: list[float] = []
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        arguments = ["--collect", str(place.folder), place.url, place.task, str(ranks)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kept_output", *arguments],
            stdout=self._out,
            env={**os.environ, "BENCHMARK_PASSWORD": place.password},
        )
        self._seen = psutil.Process(self._process.pid)

    def cpu_s(self) -> float:
        """Its processor time so far."""
        if self._process.poll() is not None:
            raise BenchmarkError("the collector has ended")
        times = self._seen.cpu_times()
        return times.user + times.system

    def rss(self) -> int:
        """Its memory."""
        return self._seen.memory_info().rss

    def kill(self) -> float:
        """End it as a crash does; returns the processor time that it took."""
        used = self.cpu_s()
        self._process.kill()
        self._process.wait()
        self._out.seek(0)
        for line in self._out.read().splitlines():
            try:
                self.delays += json.loads(line)["delays"]
            except ValueError:
                break
        return used


@contextmanager
def postgres(folder: Path) -> Generator[Postgres]:
    """A server of the benchmark's own."""
    server = Postgres(folder, ensure_credentials(folder))
    try:
        yield server
    finally:
        server.remove_temporary()


async def measure_firehose(place: Place, server: Postgres, megabytes: int, report: Report) -> None:
    """Eight ranks at full speed, the collector killed three times."""
    block = lines(20_000, 1)
    each = megabytes * MB // FIREHOSES // len(block) + 1
    size = each * len(block) * FIREHOSES
    for rank in range(FIREHOSES):
        place.source(rank).parent.mkdir(parents=True)
        place.source(rank).touch()
    child, cpu, memory = Child(place, FIREHOSES), 0.0, 0
    base = await started(child, place)
    for number in range(each):
        for rank in range(FIREHOSES):
            with place.source(rank).open("ab") as file:
                file.write(block)
        await asyncio.sleep(0)
        memory = max(memory, child.rss())
        if number * (KILLS + 1) // each != (number + 1) * (KILLS + 1) // each and number + 1 < each:
            cpu += child.kill() - base
            child = Child(place, FIREHOSES)
            base = await started(child, place)
    (place.folder / "ended").touch()
    await stored(child, place, server)
    memory = max(memory, child.rss())
    cpu += child.kill() - base
    report.measured["stored_mb_per_core_s"] = round(size / MB / cpu, 1)
    report.measured["peak_rss_mb"] = round(memory / MB, 1)
    report.measured["lost_bytes"] = await lost(place)
    report.floor["stored_mb_per_core_s"] = round(plain_copy(place), 1)


async def started(child: Child, place: Place) -> float:
    """Wait until it leads; the processor time of starting is not what is measured."""
    ends_at = time.monotonic() + 60
    before = (place.logs / ".writer").read_text() if (place.logs / ".writer").exists() else ""
    while time.monotonic() < ends_at:
        now = (place.logs / ".writer").read_text() if (place.logs / ".writer").exists() else ""
        if now != before:
            return child.cpu_s()
        child.cpu_s()
        await asyncio.sleep(0.01)
    raise BenchmarkError("the collector does not lead")


async def stored(child: Child, place: Place, server: Postgres) -> None:
    """Wait until the run is collected and sealed."""
    ends_at = time.monotonic() + STORED_SECONDS_MAX
    sealed = 'SELECT sealed FROM "log_collector"."run" WHERE task_id = $1'
    async with connected(server.url("postgres", DATABASE), server.admin_password) as connection:
        while time.monotonic() < ends_at:
            child.cpu_s()
            if await connection.fetchval(sealed, place.task):
                return
            await asyncio.sleep(0.1)
    raise BenchmarkError("not everything was stored in time")


async def lost(place: Place) -> int:
    """Compare every byte; returns how many are not as they were written."""
    archive, wrong = FileArchive(place.logs), 0
    for rank in range(FIREHOSES):
        at = 0
        with place.source(rank).open("rb") as file:
            while data := file.read(1 << 20):
                found = await archive.read(OutputKey(place.task, 1, rank), at, len(data))
                if found != data:
                    wrong += sum(a != b for a, b in zip(found, data, strict=False))
                    wrong += abs(len(found) - len(data))
                at += len(data)
        wrong += len(await archive.read(OutputKey(place.task, 1, rank), at, 1 << 20))
    return wrong


def plain_copy(place: Place) -> float:
    """Megabytes per second of processor time of a loop that copies, syncs and compresses."""
    began, size = time.process_time(), 0
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    copied, packed = place.folder / "copied", place.folder / "packed"
    with place.source(0).open("rb") as source, copied.open("wb") as copy, packed.open("wb") as out:
        while data := source.read(1 << 20):
            copy.write(data)
            size += len(data)
        copy.flush()
        os.fsync(copy.fileno())
        with copied.open("rb") as again:
            while data := again.read(1 << 18):
                out.write(compressor.compress(data))
        out.flush()
        os.fsync(out.fileno())
    return size / MB / (time.process_time() - began)


async def measure_tail(place: Place, streams: int, seconds: float, report: Report) -> None:
    """Many ranks with ten lines a second each."""
    files: list[Any] = []
    for rank in range(streams):
        place.source(rank).parent.mkdir(parents=True)
        files.append(place.source(rank).open("ab", buffering=0))
    child = Child(place, streams)
    await started(child, place)
    await asyncio.sleep(1)
    cpu, began = child.cpu_s(), time.monotonic()
    order = list(range(streams))
    random.Random(2).shuffle(order)
    rounds = int(seconds * LINES_PER_SECOND)
    for number in range(rounds):
        for index, rank in enumerate(order):
            due = began + (number + index / streams) / LINES_PER_SECOND
            if index % 20 == 0 and (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            files[rank].write(b"at %.6f step %d\n" % (time.time_ns() / 1e9, number))
    took = time.monotonic() - began
    cpu = child.cpu_s() - cpu
    await asyncio.sleep(1)
    child.kill()
    for file in files:
        file.close()
    if not child.delays:
        raise BenchmarkError("no line was published")
    report.measured |= spread(child.delays, "tail")
    report.measured["tail_lines_per_s"] = round(rounds * streams / took)
    report.measured["tail_cores"] = round(cpu / took, 3)
    report.floor["tail_p99_ms"] = round(await polled(place.folder / "polled"), 2)


async def polled(path: Path) -> float:
    """Milliseconds, 99th percentile, of one file that is read every 50 ms."""
    delays: list[float] = []

    async def write() -> None:
        with path.open("ab", buffering=0) as file:
            for _ in range(200):
                file.write(b"%.6f\n" % time.monotonic())
                await asyncio.sleep(0.011)

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(POLL_SECONDS)
    with path.open("rb", buffering=0) as file:
        while not writing.done():
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            delays += [now - float(line) for line in file.read().split()]
    await writing
    return percentile(delays, 0.99) * 1000


async def measure_seek(folder: Path, gigabytes: float, report: Report) -> None:
    """Reads at random places of one sealed output."""
    archive, key = FileArchive(folder), OutputKey("seek", 1, 0)
    block = lines(50_000, 3)
    block = (block * (SEGMENT_BYTES // len(block) + 1))[:SEGMENT_BYTES]
    path = archive.path(key)
    path.parent.mkdir(parents=True)
    path.write_bytes(block)
    await archive.seal([Segment(key, 0, len(block))], epoch=0)
    path.unlink()
    count = max(2, round(gigabytes * 1e9 / len(block)))
    for number in range(1, count):
        shutil.copyfile(archive.sealed_path(key, 0), archive.sealed_path(key, number))
    rng = random.Random(4)
    times: list[float] = []
    floor: list[float] = []
    for _ in range(SEEKS):
        at = rng.randrange(count * len(block) - SEEK_BYTES)
        fresh = FileArchive(folder)
        began = time.perf_counter()
        found = await fresh.read(key, at, SEEK_BYTES)
        times.append(time.perf_counter() - began)
        inside = at % len(block)
        assert found == (block + block)[inside : inside + SEEK_BYTES]
        began = time.perf_counter()
        with archive.sealed_path(key, at // len(block)).open("rb") as file:
            os.pread(file.fileno(), SEEK_BYTES, inside // 8)
        floor.append(time.perf_counter() - began)
    report.measured |= spread(times, "seek")
    stored_bytes = sum(archive.sealed_path(key, n).stat().st_size for n in range(count))
    report.measured["compressed_to_percent"] = round(100 * stored_bytes / (count * len(block)), 1)
    report.floor |= {"seek_p99_ms": spread(floor, "seek")["seek_p99_ms"]}


async def measure(asked: argparse.Namespace, report: Report) -> None:
    """The parts that are asked for, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-output-"))
    try:
        with postgres(folder / "database") as server:
            try:
                await server.start()
                await server.prepare()
                credentials = ensure_credentials(folder / "database")
                password = credentials.postgres_password("log_collector")
                url = server.url("log_collector")
                await upgrade(Address(url, password), TABLES, WIRING.migrations)
                for name in ("firehose", "tail"):
                    (folder / name).mkdir()
                if "firehose" in asked.parts:
                    fire = Place(folder / "firehose", url, password, "t1")
                    await measure_firehose(fire, server, asked.megabytes, report)
                    (fire.folder / "ended").unlink()
                    shutil.rmtree(fire.folder)
                if "tail" in asked.parts:
                    tail = Place(folder / "tail", url, password, "t2")
                    await measure_tail(tail, asked.streams, asked.seconds, report)
            finally:
                await server.stop()
        if "seek" in asked.parts:
            await measure_seek(folder / "seek", asked.gigabytes, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parts_of(text: str) -> Sequence[str]:
    """The parts of an option's value."""
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{unknown.pop()!r} is none of {', '.join(PARTS)}")
    return parts


def main() -> None:
    """Measure, print; or be the collector."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument(
        "--parts", type=parts_of, default=list(PARTS), help="all: " + ",".join(PARTS)
    )
    asked = parser.parse_args()
    sizes = {
        "firehose": f"{asked.megabytes:,} MB",
        "tail": f"{asked.streams:,} streams",
        "seek": f"{asked.gigabytes:g} GB",
    }
    figures = tuple(each for part in asked.parts for each in PARTS[part])
    goals = tuple(goal for goal in BENCHMARK.goals if goal.figure.startswith(figures))
    title = ", ".join(size for part, size in sizes.items() if part in asked.parts)
    report = Report(BENCHMARK, title, goals)
    asyncio.run(measure(asked, report))
    report.publish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--collect"]:
        _, _, where, server_url, task_id, rank_count = sys.argv
        here = Place(Path(where), server_url, os.environ["BENCHMARK_PASSWORD"], task_id)
        asyncio.run(collect(here, int(rank_count)))
    else:
        run(main)
