"""Whichever process dies at whichever time, no byte of an output is lost or stored twice."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.store.memory import Fault, Point, no_fault
from libs.store.port import StoreUnavailableError
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Archive, Segment, Write
from services.log_collector.domain import Address, OutputKey, Timestamp
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored
from services.log_collector.store import OutputRow
from tests.kit.clock import FakeClock
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    check_times,
    collecting,
    exited,
    key_of,
    sealed,
    settings_with,
    started,
    stored,
    times_of,
)

SMALL = settings_with(
    read_bytes_max=4096, pass_bytes_max=8192, record_bytes=16_384, record_seconds=1.0
)


# So small that outputs are sealed while they are written.
SEGMENT_BYTES = 4096


class CrashError(Exception):
    """The process dies here."""


@dataclass
class CrashingArchive:
    """Dies before or after one of its next calls that change something."""

    archive: Archive
    # How many more such points are passed; None: no crash.
    points_left: int | None = None

    def _pass(self) -> None:
        if self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                raise CrashError

    async def admit(self, epoch: int) -> None:
        self._pass()
        await self.archive.admit(epoch)
        self._pass()

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        self._pass()
        for write in writes:
            for data in (b"", write.data[: len(write.data) // 2]):
                await self.archive.write([replace(write, data=data)], epoch=epoch)
                self._pass()
            await self.archive.write([write], epoch=epoch)
        self._pass()

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        self._pass()
        await self.archive.sync(keys)
        self._pass()

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        return await self.archive.read(key, offset, bytes_max)

    async def size(self, key: OutputKey) -> int:
        return await self.archive.size(key)

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        return await self.archive.sizes(keys)

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        return await self.archive.timestamps(key, first, count)

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        return await self.archive.partition(key, count, is_before)

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0, *, epoch: int) -> None:
        self._pass()
        await self.archive.truncate(key, size, timestamps, epoch=epoch)
        self._pass()

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        self._pass()
        await self.archive.remove(keys)

    @property
    def segment_bytes(self) -> int:
        return self.archive.segment_bytes

    @property
    def has_bucket(self) -> bool:
        return self.archive.has_bucket

    async def seal(self, segments: Sequence[Segment], *, epoch: int) -> list[int | None]:
        self._pass()
        for segment in segments:
            await self.archive.seal([segment], epoch=epoch)
            self._pass()
        return await self.archive.seal(segments, epoch=epoch)

    async def release(self, sealed: Mapping[OutputKey, int], *, complete: bool, epoch: int) -> None:
        self._pass()
        for key, end in sealed.items():
            await self.archive.release({key: end}, complete=complete, epoch=epoch)
            self._pass()

    async def upload(self, segments: Sequence[Segment], *, epoch: int) -> None:
        self._pass()
        await self.archive.upload(segments, epoch=epoch)
        self._pass()

    async def drop_uploaded(self, segments: Sequence[Segment], *, epoch: int) -> None:
        self._pass()
        await self.archive.drop_uploaded(segments, epoch=epoch)
        self._pass()


class Forgetful(MemorySource):
    """Drops what it no longer needs to keep; a later read of it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: dict[OutputKey, int] = {}

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        for request in requests:
            gone = self.dropped.get(request.address.key, 0)
            assert request.offset >= gone, f"reads byte {request.offset}, and {gone} were dropped"
        return await super().read(requests, bytes_max)

    async def stored(self, stored: Sequence[Stored]) -> None:
        for each in stored:
            key = each.address.key
            written = len(self.outputs.get(key, b""))
            self.dropped[key] = max(self.dropped.get(key, 0), min(each.offset, written))


class Written(Forgetful):
    """Remembers when its bytes came."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.came: dict[OutputKey, list[Timestamp]] = {}

    def append(self, key: OutputKey, data: bytes) -> None:
        offset = len(self.outputs.get(key, b""))
        if data:
            self.came.setdefault(key, []).append(Timestamp(offset, self.clock.now()))
        super().append(key, data)

    def check_is_not_before(self, rank: int, found: list[Timestamp]) -> None:
        """No byte was written later than its timestamp."""
        for came in self.came.get(key_of(rank), []):
            covering = [each for each in found if each.offset <= came.offset]
            assert covering[-1].at >= came.at


Lives = list[tuple[list[tuple[int, bytes]], int, Point | None]]


def lives_of(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[Lives]:
    """For each life of a process: what ranks write, and after how many points it dies."""
    return st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 1), data), max_size=4),
            st.integers(0, 16),
            st.sampled_from([None, Point.BEFORE_COMMIT, Point.AFTER_COMMIT]),
        ),
        max_size=6,
    )


# What becomes of bytes that were not synced: they are there, gone, or zeros.
fates = st.sampled_from(["process", "power", "torn"])


async def live(
    platform: MemoryPlatform, source: Forgetful, disk: MemoryArchive, lived: Lives, fails: str
) -> CollectorHarness:
    """Work through all these lives, and to the end of the run."""
    archive = CrashingArchive(disk)
    harness = await collecting(source, archive, SMALL, platform=platform)
    await harness.handle(started(2))
    for written, points, commit in lived:
        archive.points_left, platform.database.fault = points, fault_at(commit)
        await life(harness, source, written)
        archive.points_left, platform.database.fault = None, no_fault
        if fails != "process":
            disk.crash(torn=fails == "torn")
        await harness.restart()
    await harness.handle(exited(2))
    await harness.settle()
    await sealed(harness)
    return harness


@given(lives_of(st.binary(max_size=9000)), fates)
@settings(max_examples=60, deadline=None)
async def test_no_crash_loses_or_doubles_a_byte(lived: Lives, fails: str) -> None:
    platform, disk = MemoryPlatform(), MemoryArchive(SEGMENT_BYTES)
    source = Written(platform.clock)
    for rank in range(2):
        source.append(key_of(rank), b"\xff")  # no text: a carriage return means nothing in it
    harness = await live(platform, source, disk, lived, fails)
    for rank in range(2):
        assert await stored(disk, rank) == bytes(source.outputs.get(key_of(rank), b""))
    rows = await harness.rows(OutputRow)
    assert [(row.rank, row.complete) for row in rows] == [(0, True), (1, True)]
    assert [row.size for row in rows] == [len(await stored(disk, rank)) for rank in range(2)]
    for row in rows:
        found = await times_of(disk, row)
        check_times(found, row.size)
        source.check_is_not_before(row.rank, found)


# Bars, prompts, lines, and characters that a read may cut.
bars = st.lists(
    st.sampled_from(["\r", "\n", "\r\n", " 10%|#", "0", "é", "done", "\r 99%|########"]),
    max_size=40,
).map(lambda parts: "".join(parts).encode())


def shown(output: bytes) -> list[bytes]:
    """What a terminal that clears the line at a carriage return shows in the end."""
    lines = [line.rstrip(b"\r").split(b"\r") for line in output.split(b"\n")]
    return [states[-1] for states in lines]


@given(lives_of(bars), fates)
@settings(max_examples=60, deadline=None)
async def test_no_crash_loses_or_doubles_the_last_state_of_a_line(lived: Lives, fails: str) -> None:
    source, disk = Forgetful(), MemoryArchive(SEGMENT_BYTES)
    harness = await live(MemoryPlatform(), source, disk, lived, fails)
    for rank in range(2):
        wrote = bytes(source.outputs.get(key_of(rank), b""))
        assert shown(await stored(disk, rank)) == shown(wrote)
    rows = {row.rank: row for row in await harness.rows(OutputRow)}
    assert all(row.complete for row in rows.values())
    for rank, row in rows.items():
        wrote = bytes(source.outputs.get(key_of(rank), b""))
        assert row.size + row.skipped == len(wrote)
        check_times(await times_of(disk, row), row.size)


def fault_at(commit: Point | None) -> Fault:
    async def fault(point: Point, _schema: str) -> None:
        if point is commit:
            raise StoreUnavailableError("gone")

    return fault


async def life(
    harness: CollectorHarness, source: MemorySource, written: list[tuple[int, bytes]]
) -> None:
    """Work until the crash: at a point of the archive, or around a commit."""
    try:
        for rank, data in written:
            source.append(key_of(rank), data)
            harness.clock.advance(0.7)
            await harness.copy_and_record()
            await harness.copy_and_record()
            await harness.step("seal")
    except (CrashError, StoreUnavailableError):
        return


WRITER = """
import os, random, sys, time
rng = random.Random(int(sys.argv[2]))
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
left = 3_000_000
while left > 0:
    data = rng.randbytes(min(left, rng.choice([1, 10, 1000, 65536, 200_000])))
    os.write(fd, data)
    left -= len(data)
    if rng.random() < 0.2:
        time.sleep(0.002)
"""


async def test_concurrent_writers_are_copied_byte_for_byte_through_restarts(
    tmp_path: Path,
) -> None:
    rng = random.Random(5)
    source, archive = FileSource(tmp_path / "runs"), FileArchive(tmp_path / "logs")
    settings = settings_with(read_bytes_max=100_000, record_bytes=300_000)
    harness = await collecting(source, archive, settings)
    await harness.handle(started(2))
    paths = [output_path(tmp_path / "runs", Address(key_of(rank), f"n{rank}")) for rank in (0, 1)]
    for path in paths:
        path.parent.mkdir(parents=True)
    writers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), str(rank))
        for rank, path in enumerate(paths)
    ]
    deadline = time.monotonic() + 20
    while any(writer.returncode is None for writer in writers):
        assert time.monotonic() < deadline
        harness.clock.advance(0.1)
        await harness.copy_and_record()
        await asyncio.sleep(0)
        if rng.random() < 0.1:
            await harness.restart()
    await harness.handle(exited(2))
    await harness.settle()
    for rank, path in enumerate(paths):
        assert archive.path(key_of(rank)).read_bytes() == path.read_bytes()
        assert path.stat().st_size == 3_000_000
    assert all(row.complete for row in await harness.rows(OutputRow))
