from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.bus.port import BusUnavailableError
from libs.contracts.envelope import Envelope
from libs.store.memory import Fault, MemoryDatabase, Point, no_fault
from libs.store.port import Store, StoreUnavailableError
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Archive, ArchiveError, Write
from services.log_collector.domain import Address, OutputKey, Timestamp, limit_line
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored
from services.log_collector.store import EntryRow, OutputRow, RunRow
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    CrashError,
    CrashingArchive,
    ManualClock,
    a_store,
    at,
    exited,
    gang,
    key_of,
    settings_with,
    started,
    without_times,
)

SMALL = settings_with(
    read_bytes_max=4096, pass_bytes_max=8192, record_bytes=16_384, record_seconds=1.0
)


async def stored(archive: Archive, rank: int = 0) -> bytes:
    key = key_of(rank)
    return await archive.read(key, 0, await archive.size(key))


async def test_output_is_copied_recorded_and_completed(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started(2))
    source.append(key_of(0), b"one\n")
    await harness.step()
    source.append(key_of(0), b"two\n")
    source.append(key_of(1), b"\xff\x00half a line")
    await harness.step()
    assert await stored(harness.archive, 0) == b"one\ntwo\n"
    assert await stored(harness.archive, 1) == b"\xff\x00half a line"
    await harness.handle_events(exited(2))
    source.append(key_of(1), b" and its end")
    await harness.settle()
    rows = await harness.rows(OutputRow)
    assert [(row.rank, row.size, row.complete) for row in rows] == [(0, 8, True), (1, 25, True)]
    assert [row.collected for row in await harness.rows(RunRow)] == [True]
    assert await harness.step() is None


async def test_a_run_known_only_by_its_exit_is_collected(
    harness: CollectorHarness, source: MemorySource
) -> None:
    source.append(key_of(), b"it ran\n")
    await harness.handle_events(exited(), started())
    await harness.settle()
    assert await stored(harness.archive) == b"it ran\n"
    assert (await harness.rows(OutputRow))[0].complete
    await harness.handle_events(started(), exited())  # repeated: nothing starts again
    assert await harness.step() is None


async def test_an_output_that_never_was_is_complete_and_empty(harness: CollectorHarness) -> None:
    await harness.handle_events(started(), exited())
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (0, True)


async def test_an_idle_collector_writes_nothing(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    source.append(key_of(), b"x")
    await harness.settle()
    (before,) = await harness.rows(OutputRow)
    for _ in range(5):
        harness.clock.advance(10)
        assert await harness.step() == 0.1
    assert await harness.rows(OutputRow) == [before]


async def test_live_readers_get_whole_lines(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started(2))
    source.append(key_of(1), b"first\nsecond\n" * 10_000)
    await harness.step()
    published = harness.bus.published
    assert b"".join(chunk.data for chunk in published) == b"first\nsecond\n" * 10_000
    assert all(len(chunk.data) <= 65_536 and chunk.data.endswith(b"\n") for chunk in published)
    assert {(chunk.task_id, chunk.attempt, chunk.rank, chunk.role) for chunk in published} == {
        ("t1", 1, 1, "worker")
    }


async def test_live_readers_get_the_end_of_a_burst_and_all_of_it_is_kept(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    burst = b"%07d\n" * 125_000 % tuple(range(125_000))
    source.append(key_of(), burst)
    await harness.settle()
    assert await stored(harness.archive) == burst
    published = harness.bus.published
    assert sum(len(chunk.data) for chunk in published) == settings_with().live_bytes_max
    for chunk in published:
        assert burst[chunk.offset :].startswith(chunk.data)


async def test_a_bus_that_is_down_does_not_stop_the_copying(
    harness: CollectorHarness, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_envelope: Envelope) -> None:
        raise BusUnavailableError("down")

    monkeypatch.setattr(harness.bus, "send_telemetry", down)
    await harness.handle_events(started())
    source.append(key_of(), b"kept all the same")
    await harness.settle()
    assert await stored(harness.archive) == b"kept all the same"


async def test_the_limit_is_noted_and_ends_the_copying(source: MemorySource) -> None:
    clock, database = ManualClock(), MemoryDatabase()
    limited = settings_with(output_bytes_max=1024)
    harness = CollectorHarness(a_store(clock, database), clock, MemoryArchive(), limited, source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"a" * 1000)
    await harness.step()
    source.append(key_of(), b"b" * 1000)
    await harness.settle()
    source.append(key_of(), b"c" * 1000)
    await harness.settle()
    wanted = b"a" * 1000 + b"b" * 24 + limit_line(1024)
    assert await stored(harness.archive) == wanted
    await harness.restart(database)
    await harness.handle_events(exited())
    await harness.settle()
    assert await stored(harness.archive) == wanted
    (row,) = await harness.rows(OutputRow)
    assert (row.full, row.complete, row.size) == (True, True, len(wanted))


async def test_one_loud_rank_does_not_silence_the_others(source: MemorySource) -> None:
    clock = ManualClock()
    harness = CollectorHarness(a_store(clock), clock, MemoryArchive(), SMALL, source)
    await harness.lead()
    await harness.handle_events(started(4))
    for _ in range(40):
        for rank in range(3):
            source.append(key_of(rank), b"." * 4096)
        source.append(key_of(3), b"here\n")
        await harness.step()
    assert len(await stored(harness.archive, 3)) >= 5 * 20


class Broken(MemorySource):
    """Cannot be read, until it can."""

    problem = "Permission denied"

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        if self.problem:
            return [ReadResult(problem=self.problem) for _ in requests]
        return await super().read(requests, bytes_max)


async def test_unreadable_output_is_waited_for_but_not_for_ever() -> None:
    clock, source = ManualClock(), Broken()
    harness = CollectorHarness(a_store(clock), clock, MemoryArchive(), settings_with(), source)
    await harness.lead()
    await harness.handle_events(started(), exited())
    source.append(key_of(), b"late but there")
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    source.problem = ""
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert await stored(harness.archive) == b"late but there"

    source.problem = "Input/output error"
    await harness.handle_events(started(attempt=2), exited(attempt=2, seconds=200))
    await harness.settle()
    assert not (await harness.rows(RunRow))[1].collected
    clock.moment = at(200 + 301)
    await harness.settle()
    assert (await harness.rows(RunRow))[1].collected
    assert await harness.archive.read(key_of(attempt=2), 0, 1000) == (
        b"[shiftwork: output is missing from here on: Input/output error]\n"
    )


@pytest.mark.parametrize("removed", [False, True])
async def test_output_that_was_truncated_at_its_source_ends_with_a_note(
    clock: ManualClock, tmp_path: Path, removed: bool
) -> None:
    """Never as if it were complete."""
    database, archive = MemoryDatabase(), MemoryArchive()
    harness = CollectorHarness(
        a_store(clock, database), clock, archive, settings_with(), FileSource(tmp_path)
    )
    await harness.lead()
    path = output_path(tmp_path, Address(key_of(), gang(1)[0].node_id))
    path.parent.mkdir(parents=True)
    before = b"".join(b"%d\n" % number for number in range(1000))
    path.write_bytes(before)
    await harness.handle_events(started())
    await harness.settle()
    assert await stored(archive) == before
    if removed:
        path.unlink()
    else:
        path.write_bytes(b"x\n" * 202)
    await harness.settle()
    # While the run lives its writer may restore the file's length.
    assert await stored(archive) == before
    await harness.handle_events(exited())
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    why = b"its file was removed" if removed else b"its file was cut to 404 of 3890 bytes"
    text = before + b"[shiftwork: output is missing from here on: " + why + b"]\n"
    assert await stored(archive) == text
    # The next leader finds it reported already.
    await harness.restart(database)
    await harness.settle()
    assert await stored(archive) == text


class Doubtful(MemorySource):
    """Cannot say for certain, until it can; remembers what it was asked and told."""

    def __init__(self) -> None:
        super().__init__()
        self.unsure = True
        self.requests: list[ReadRequest] = []
        self.published: list[Stored] = []

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        self.requests = list(requests)
        if self.unsure:
            return [ReadResult(unsure=True) for _ in requests]
        return await super().read(requests, bytes_max)

    async def stored(self, stored: Sequence[Stored]) -> None:
        self.published.extend(stored)


async def doubted(
    clock: ManualClock, source: Doubtful, archive: Archive
) -> tuple[CollectorHarness, MemoryDatabase]:
    database = MemoryDatabase()
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings_with(), source)
    await harness.lead()
    return harness, database


async def test_an_output_ends_only_on_a_certain_answer(clock: ManualClock) -> None:
    source = Doubtful()
    harness, _ = await doubted(clock, source, MemoryArchive())
    await harness.handle_events(started(), exited())
    source.append(key_of(), b"flushed late")
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    assert [request.sure for request in source.requests] == [True]
    source.unsure = False
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert await stored(harness.archive) == b"flushed late"


async def test_uncertainty_is_waited_for_but_not_for_ever(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Doubtful()
    harness, database = await doubted(clock, source, MemoryArchive())
    await harness.handle_events(started(), exited())
    clock.advance(299)
    await harness.step()
    assert not (await harness.rows(RunRow))[0].collected
    # The time without a collector does not count.
    clock.advance(1000)
    await harness.restart(database)
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    clock.advance(300)
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert "output is given up" in capsys.readouterr().out


async def test_the_source_is_shown_the_last_bytes_that_are_kept(clock: ManualClock) -> None:
    source = Doubtful()
    source.unsure = False
    harness, database = await doubted(clock, source, MemoryArchive())
    await harness.handle_events(started())
    source.append(key_of(), b"a" * 60)
    await harness.step()
    source.append(key_of(), b"b" * 10)
    await harness.settle()
    (request,) = source.requests
    assert (request.offset, request.before, request.sure) == (70, b"a" * 54 + b"b" * 10, False)
    await harness.restart(database)
    await harness.step()
    assert source.requests == [request]


async def test_unrecorded_bytes_are_resolved_when_the_source_answers(clock: ManualClock) -> None:
    """Bytes beyond the recorded size may be damaged; the source has them still."""
    source, archive = Doubtful(), MemoryArchive()
    source.unsure = False
    harness, database = await doubted(clock, source, archive)
    await harness.handle_events(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    await archive.write([Write(key_of(), 9, b"\0\0\0\0")])
    source.append(key_of(), b"more")
    source.unsure = True
    await harness.restart(database)
    for _ in range(3):
        assert await harness.step() == 0.1
        clock.advance(1)
    source.unsure = False
    await harness.handle_events(exited())
    await harness.settle()
    assert await stored(archive) == b"recorded|more"
    assert (await harness.rows(RunRow))[0].collected


async def test_unrecorded_bytes_are_kept_if_the_source_stays_silent(clock: ManualClock) -> None:
    source, archive = Doubtful(), MemoryArchive()
    source.unsure = False
    harness, database = await doubted(clock, source, archive)
    await harness.handle_events(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    await archive.write([Write(key_of(), 9, b"the only copy")])
    source.unsure = True
    await harness.restart(database)
    await harness.handle_events(exited())
    await harness.step()
    clock.advance(301)
    await harness.step()
    clock.advance(301)
    await harness.settle()
    mark = b"[shiftwork: output is missing from here on: its source did not answer]\n"
    assert await stored(archive) == b"recorded|the only copy" + mark
    assert (await harness.rows(RunRow))[0].collected


async def test_only_recorded_bytes_are_reported_to_the_source(clock: ManualClock) -> None:
    source = Doubtful()
    source.unsure = False
    harness, database = await doubted(clock, source, MemoryArchive())
    place = Address(key_of(), "n0")
    await harness.handle_events(started())
    source.append(key_of(), b"12345")
    await harness.run("copy")
    assert source.published == []
    await harness.run("record")
    assert source.published == [Stored(place, 5, done=False)]
    await harness.handle_events(exited())
    await harness.settle()
    assert source.published[-1] == Stored(place, 5, done=True)
    # The successor of a process that died before reporting it reports it.
    source.published.clear()
    await harness.restart(database)
    assert source.published == [Stored(place, 0, done=True)]
    clock.advance(3601)
    source.published.clear()
    await harness.restart(database)
    assert source.published == []


async def test_the_source_keeps_a_line_that_may_still_be_overwritten(
    clock: ManualClock,
) -> None:
    source = Doubtful()
    source.unsure = False
    harness, database = await doubted(clock, source, MemoryArchive())
    await harness.handle_events(started())
    source.append(key_of(), b"begins\n\r 10%\r 20%")
    await harness.step()
    # The line before the bar is kept, the bar's first state skipped, and its second one neither.
    assert source.published == [Stored(Address(key_of(), "n0"), len(b"begins\n\r 10%"), done=False)]
    await harness.restart(database)
    await harness.step()
    await harness.handle_events(exited())
    await harness.settle()
    assert await stored(harness.archive) == b"begins\n\r 20%"
    assert source.published[-1] == Stored(
        Address(key_of(), "n0"), len(b"begins\n\r 10%\r 20%"), done=True
    )


class Forgetful(MemorySource):
    """Drops what it is told that it need not keep; asked for it, it has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: dict[OutputKey, int] = {}

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        for request in requests:
            gone = self.dropped.get(request.address.key, 0)
            assert request.offset >= gone, (
                f"asks for byte {request.offset}, and {gone} were dropped"
            )
        return await super().read(requests, bytes_max)

    async def stored(self, stored: Sequence[Stored]) -> None:
        for each in stored:
            key = each.address.key
            written = len(self.outputs.get(key, b""))
            self.dropped[key] = max(self.dropped.get(key, 0), min(each.offset, written))


class Written(Forgetful):
    """Remembers when its bytes came."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.came: dict[OutputKey, list[Timestamp]] = {}

    def append(self, key: OutputKey, data: bytes) -> None:
        offset = len(self.outputs.get(key, b""))
        if data:
            self.came.setdefault(key, []).append(Timestamp(offset, self.clock.now()))
        super().append(key, data)

    def check_is_not_before(self, rank: int, found: list[Timestamp]) -> None:
        """No byte was written later than its time stamp says."""
        for came in self.came.get(key_of(rank), []):
            covering = [each for each in found if each.offset <= came.offset]
            assert covering[-1].at >= came.at


async def test_nothing_more_of_a_full_output_is_read(clock: ManualClock) -> None:
    source = Doubtful()
    source.unsure = False
    limited = settings_with(output_bytes_max=1024)
    harness = CollectorHarness(a_store(clock), clock, MemoryArchive(), limited, source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"x" * 5000)
    await harness.settle()
    assert source.published[-1] == Stored(Address(key_of(), "n0"), 2**62, done=False)


class FullDisk(MemoryArchive):
    full = True

    async def write(self, writes: Sequence[object]) -> None:
        if self.full:
            raise ArchiveError("[Errno 28] No space left on device")
        await super().write(writes)  # pyright: ignore[reportArgumentType]


async def test_a_full_disk_is_waited_out(source: MemorySource) -> None:
    clock, archive = ManualClock(), FullDisk()
    harness = CollectorHarness(a_store(clock), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started(), exited())
    source.append(key_of(), b"all of it")
    assert await harness.step() == 5.0
    assert await harness.rows(OutputRow) == []
    archive.full = False
    await harness.settle()
    assert await stored(archive) == b"all of it"


class SlowDisk(MemoryArchive):
    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.go_on = asyncio.Event(), asyncio.Event()

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        await super().sync(keys)
        self.syncing.set()
        await self.go_on.wait()


async def test_bytes_during_a_slow_sync_are_copied_and_recorded_next(
    source: MemorySource, clock: ManualClock
) -> None:
    archive = SlowDisk()
    harness = CollectorHarness(a_store(clock), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"before ")
    await harness.run("copy")
    async with asyncio.TaskGroup() as group:
        recording = group.create_task(harness.run("record"))
        await archive.syncing.wait()
        source.append(key_of(), b"during")
        clock.advance(60)
        await harness.run("copy")
        assert await stored(archive) == b"before during"
        await harness.handle_events(exited())
        await harness.run("copy")
        archive.go_on.set()
        assert await recording == settings_with().record_seconds
    assert [(row.size, row.complete) for row in await harness.rows(OutputRow)] == [(7, False)]
    await harness.run("record")
    assert [(row.size, row.complete) for row in await harness.rows(OutputRow)] == [(13, True)]
    assert [row.offset for row in await harness.rows(EntryRow)] == [0, 7]
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


async def test_a_new_leader_goes_on_where_the_database_says(
    source: MemorySource, clock: ManualClock
) -> None:
    database, archive = MemoryDatabase(), MemoryArchive()
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started(2))
    source.append(key_of(0), b"recorded|")
    await harness.settle()
    source.append(key_of(0), b"unrecorded")
    await harness.step()
    await archive.sync([key_of(0)])
    await harness.restart(database)
    await harness.step()
    source.append(key_of(0), b", and more")
    await harness.settle()
    assert await stored(archive) == b"recorded|unrecorded, and more"


async def test_unrecorded_bytes_stay_if_the_source_is_gone(
    source: MemorySource, clock: ManualClock
) -> None:
    database, archive = MemoryDatabase(), MemoryArchive()
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    source.append(key_of(), b"the only copy")
    await harness.step()
    source.outputs.clear()
    await harness.restart(database)
    await harness.handle_events(exited())
    await harness.settle()
    assert await stored(archive) == b"recorded|the only copy"
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (22, True)


async def test_what_the_archive_lost_is_read_again(
    source: MemorySource, clock: ManualClock
) -> None:
    database, archive = MemoryDatabase(), MemoryArchive()
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"0123456789")
    await harness.settle()
    await archive.truncate(key_of(), 4, 1)
    await harness.restart(database)
    await harness.settle()
    assert await stored(archive) == b"0123456789"
    (row,) = await harness.rows(OutputRow)
    assert [each.offset for each in await times_of(archive, row)] == [0, 4]


async def times_of(archive: Archive, row: OutputRow) -> list[Timestamp]:
    """The time stamps that count: as many as the database says."""
    key = key_of(row.rank, row.attempt)
    found = await archive.timestamps(key, 0, row.timestamps)
    assert len(found) == row.timestamps
    return found


def check_times(found: list[Timestamp], size: int) -> None:
    """Every byte has a time, and times never go backwards."""
    offsets = [each.offset for each in found]
    assert offsets[:1] == [0] * bool(size)
    assert offsets == sorted(set(offsets))
    assert all(offset < size for offset in offsets)
    assert [each.at for each in found] == sorted(each.at for each in found)


async def test_each_read_has_its_time(harness: CollectorHarness, source: MemorySource) -> None:
    await harness.handle_events(started())
    for number in range(3):
        source.append(key_of(), b"line %d\n" % number)
        await harness.step()
        harness.clock.advance(0.25)
    source.append(key_of(), b"begun")
    await harness.step()
    harness.clock.advance(1)
    source.append(key_of(), b" ended\nlast\n")
    await harness.handle_events(exited())
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    wanted = [(0, 0.0), (7, 0.25), (14, 0.5), (21, 0.75), (26, 1.75)]
    found = await times_of(harness.archive, row)
    assert found == [Timestamp(offset, at(seconds)) for offset, seconds in wanted]
    published = [(chunk.offset, chunk.timestamps[0].offset) for chunk in harness.bus.published]
    assert published == [(offset, offset) for offset, _ in wanted]
    assert [chunk.timestamps[0].at for chunk in harness.bus.published] == [
        each.at for each in found
    ]


async def test_a_clock_that_is_set_back_repeats_the_last_time(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    for seconds in (10, 3, 9, 11):
        harness.clock.moment = at(seconds)
        source.append(key_of(), b"a line\n")
        await harness.step()
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    found = await times_of(harness.archive, row)
    assert [each.at for each in found] == [at(10), at(10), at(10), at(11)]


class Dated(MemorySource):
    """Says when each line was written: a second after the one before."""

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        answers = await super().read(requests, bytes_max)
        return [
            result and self._dated(request, result)
            for request, result in zip(requests, answers, strict=True)
        ]

    def _dated(self, request: ReadRequest, result: ReadResult) -> ReadResult:
        output = bytes(self.outputs[request.address.key])
        stamps: list[Timestamp] = []
        begin = 0
        for number, line in enumerate(output.split(b"\n")):
            if request.offset <= begin < request.offset + len(result.data):
                stamps.append(Timestamp(begin - request.offset, at(number)))
            begin += len(line) + 1
        return ReadResult(result.data, timestamps=tuple(stamps))


async def test_the_times_of_the_source_are_kept(clock: ManualClock) -> None:
    source = Dated()
    harness = CollectorHarness(a_store(clock), clock, MemoryArchive(), settings_with(), source)
    await harness.lead()
    await harness.handle_events(started(), exited())
    source.append(key_of(), b"one\ntwo\n\r 10%\r 20%\nfour\nfive: in the future\n")
    clock.moment = at(3.5)
    await harness.settle()
    assert await stored(harness.archive) == b"one\ntwo\n\r 20%\nfour\nfive: in the future\n"
    (row,) = await harness.rows(OutputRow)
    assert await times_of(harness.archive, row) == [
        Timestamp(0, at(0)),
        Timestamp(4, at(1)),
        Timestamp(8, at(2)),
        Timestamp(14, at(3)),
        Timestamp(19, at(3.5)),
    ]
    published = [
        (each.offset, each.at) for chunk in harness.bus.published for each in chunk.timestamps
    ]
    assert published[:2] == [(0, at(0)), (4, at(1))]


async def test_a_read_in_the_middle_of_a_line_goes_on_with_its_time(clock: ManualClock) -> None:
    source = Dated()
    settings = settings_with(read_bytes_max=4096)
    harness = CollectorHarness(a_store(clock), clock, MemoryArchive(), settings, source)
    await harness.lead()
    await harness.handle_events(started(), exited())
    source.append(key_of(), b"x" * 5000 + b"\nnext\n")
    clock.moment = at(100)
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    found = await times_of(harness.archive, row)
    assert found == [Timestamp(0, at(0)), Timestamp(4096, at(0)), Timestamp(5001, at(1))]


async def test_the_only_copy_keeps_its_times(source: MemorySource, clock: ManualClock) -> None:
    """Bytes that are not recorded, of a source that is gone: with the time stamps that are there,
    unless these are damaged."""
    for damaged in (False, True):
        database, archive = MemoryDatabase(), MemoryArchive()
        harness = CollectorHarness(
            a_store(clock, database), clock, archive, settings_with(), source
        )
        await harness.lead()
        await harness.handle_events(started())
        clock.moment = at(0)
        source.append(key_of(), b"recorded|")
        await harness.settle()
        for seconds in (100, 101):
            clock.moment = at(seconds)
            source.append(key_of(), b"only")
            await harness.run("copy")
        if damaged:
            await archive.write([Write(key_of(), 9, b"", (Timestamp(0, at(0)),), 1)])
        source.outputs.clear()
        clock.moment = at(200)
        await harness.restart(database)
        await harness.handle_events(exited())
        await harness.settle()
        assert await stored(archive) == b"recorded|onlyonly"
        (row,) = await harness.rows(OutputRow)
        found = [(each.offset, each.at) for each in await times_of(archive, row)]
        beyond = [(9, at(200))] if damaged else [(9, at(100)), (13, at(101))]
        assert found == [(0, at(0)), *beyond]


async def test_times_go_on_where_an_old_version_kept_none(
    source: MemorySource, clock: ManualClock
) -> None:
    database, archive = MemoryDatabase(), MemoryArchive()
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings_with(), source)
    await harness.lead()
    await harness.handle_events(started())
    source.append(key_of(), b"before\n")
    await harness.settle()
    await without_times(harness)
    clock.moment = at(500)
    await harness.restart(database)
    source.append(key_of(), b"after\n")
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert await times_of(archive, row) == [Timestamp(7, at(500))]


# One life of a process: what ranks write while it lives, and after how many points it dies.
lives = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=9000)), max_size=4),
        st.integers(0, 16),
        st.sampled_from([None, Point.BEFORE_COMMIT, Point.AFTER_COMMIT]),
    ),
    max_size=6,
)


# What becomes of bytes that were not synced: they are there, gone, or zeros.
@given(lives, st.sampled_from(["process", "power", "torn"]))
@settings(max_examples=60, deadline=None)
async def test_no_crash_loses_or_doubles_a_byte(
    lived: list[tuple[list[tuple[int, bytes]], int, Point | None]], fails: str
) -> None:
    clock, database = ManualClock(), MemoryDatabase()
    source = Written(clock)
    disk = MemoryArchive()
    archive = CrashingArchive(disk)
    harness = CollectorHarness(a_store(clock, database), clock, archive, SMALL, source)
    await harness.lead()
    await harness.handle_events(started(2))
    for rank in range(2):
        source.append(key_of(rank), b"\xff")  # no text: a carriage return means nothing in it
    for written, points, commit in lived:
        archive.points_left, database.fault = points, fault_at(commit)
        await life(harness, source, written)
        archive.points_left, database.fault = None, no_fault
        if fails != "process":
            disk.crash(torn=fails == "torn")
        await harness.restart(database)
    await harness.handle_events(exited(2))
    await harness.settle()
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
bar_lives = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), bars), max_size=4),
        st.integers(0, 16),
        st.sampled_from([None, Point.BEFORE_COMMIT, Point.AFTER_COMMIT]),
    ),
    max_size=6,
)


def shown(output: bytes) -> list[bytes]:
    """What a terminal that clears the line at a carriage return shows in the end."""
    lines = [line.rstrip(b"\r").split(b"\r") for line in output.split(b"\n")]
    return [states[-1] for states in lines]


@given(bar_lives, st.sampled_from(["process", "power", "torn"]))
@settings(max_examples=60, deadline=None)
async def test_no_crash_loses_or_doubles_the_last_state_of_a_line(
    lived: list[tuple[list[tuple[int, bytes]], int, Point | None]], fails: str
) -> None:
    clock, database, source = ManualClock(), MemoryDatabase(), Forgetful()
    disk = MemoryArchive()
    archive = CrashingArchive(disk)
    harness = CollectorHarness(a_store(clock, database), clock, archive, SMALL, source)
    await harness.lead()
    await harness.handle_events(started(2))
    for written, points, commit in lived:
        archive.points_left, database.fault = points, fault_at(commit)
        await life(harness, source, written)
        archive.points_left, database.fault = None, no_fault
        if fails != "process":
            disk.crash(torn=fails == "torn")
        await harness.restart(database)
    await harness.handle_events(exited(2))
    await harness.settle()
    for rank in range(2):
        wrote = bytes(source.outputs.get(key_of(rank), b""))
        assert shown(await stored(disk, rank)) == shown(wrote)
    rows = {row.rank: row for row in await harness.rows(OutputRow)}
    assert all(row.complete for row in rows.values())
    for rank, row in rows.items():
        wrote = bytes(source.outputs.get(key_of(rank), b""))
        assert row.size + row.skipped == len(wrote)
        check_times(await times_of(disk, row), row.size)


async def test_a_progress_bar_is_kept_as_few_lines_and_published_at_a_bounded_rate(
    harness: CollectorHarness, source: MemorySource
) -> None:
    """100,000 states in ten minutes: the last one is kept with its line, few others are."""
    await harness.handle_events(started())
    source.append(key_of(), b"begin\n")
    for second in range(600):
        for tenth in range(10):
            number = second * 167 + tenth
            source.append(key_of(), b"".join(b"\r%6d|####" % (number + i) for i in range(16)))
            await harness.step()
            harness.clock.advance(0.1)
    lines = [chunk for chunk in harness.bus.published if chunk.line]
    assert len(lines) <= 2 * 600 + 2
    assert all(chunk.data == b"" and chunk.line.startswith(b"\r") for chunk in lines)
    source.append(key_of(), b"\r100000|####\nnext\n")
    await harness.step()
    output = await stored(harness.archive)
    assert output.startswith(b"begin\n\r")
    assert output.endswith(b"\r100000|####\nnext\n")
    assert output.count(b"\r") <= 16


async def test_a_bar_that_nothing_follows_is_kept_at_the_end(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    source.append(key_of(), b"\r 10%\r 20%")
    await harness.step()
    assert await stored(harness.archive) == b""
    assert [chunk.line for chunk in harness.bus.published] == [b"\r 20%"]
    source.append(key_of(), b"\r 30%")
    await harness.handle_events(exited())
    await harness.settle()
    assert await stored(harness.archive) == b"\r 30%"


async def test_a_state_of_a_bar_is_kept_while_it_goes_on(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    source.append(key_of(), b"\r 10%")
    await harness.step()
    harness.clock.advance(2)
    await harness.step()
    assert await stored(harness.archive) == b"\r 10%"


async def test_a_prompt_is_kept_and_published_at_once(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    source.append(key_of(), b"loading")
    await harness.step()
    assert await stored(harness.archive) == b"loading"
    assert [chunk.data for chunk in harness.bus.published] == [b"loading"]


async def test_a_state_of_any_length_is_bounded(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    source.append(key_of(), b"\r" + b"x" * 1_000_000)
    await harness.settle()
    assert await stored(harness.archive) == b"\r" + b"x" * 1_000_000


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
            await harness.step()
            await harness.step()
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
    clock, database, rng = ManualClock(), MemoryDatabase(), random.Random(5)
    source, archive = FileSource(tmp_path / "runs"), FileArchive(tmp_path / "logs")
    settings = settings_with(read_bytes_max=100_000, record_bytes=300_000)
    harness = CollectorHarness(a_store(clock, database), clock, archive, settings, source)
    await harness.lead()
    await harness.handle_events(started(2))
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
        clock.advance(0.1)
        await harness.step()
        await asyncio.sleep(0)
        if rng.random() < 0.1:
            await harness.restart(database)
    await harness.handle_events(exited(2))
    await harness.settle()
    for rank, path in enumerate(paths):
        assert archive.path(key_of(rank)).read_bytes() == path.read_bytes()
        assert path.stat().st_size == 3_000_000
    assert all(row.complete for row in await harness.rows(OutputRow))


async def test_the_index_is_recorded_with_the_bytes(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle_events(started())
    for _ in range(30):
        source.append(key_of(), b"a line\n")
        await harness.step()
        harness.clock.advance(1)
    await harness.settle()
    entries = await harness.rows(EntryRow)
    assert [row.offset for row in entries] == [0, 70, 140]
    assert [row.first_at for row in entries] == [at(0), at(10), at(20)]
    assert [row.last_at for row in entries] == [at(9), at(19), at(29)]


async def test_old_output_is_dropped(harness: CollectorHarness, source: MemorySource) -> None:
    for attempt in (1, 2):
        source.append(key_of(attempt=attempt), b"bytes")
    await harness.handle_events(started(), exited(), started(attempt=2))
    await harness.settle()
    harness.clock.advance(91 * 86_400)
    assert await harness.run("drop") is None
    assert [(row.attempt, row.collected) for row in await harness.rows(RunRow)] == [(2, False)]
    assert [row.attempt for row in await harness.rows(OutputRow)] == [2]
    assert [row.attempt for row in await harness.rows(EntryRow)] == [2]
    assert await harness.archive.size(key_of(attempt=1)) == 0
    assert await harness.archive.size(key_of(attempt=2)) == 5
    assert await harness.archive.timestamps(key_of(attempt=1), 0, 9) == []
    assert len(await harness.archive.timestamps(key_of(attempt=2), 0, 9)) == 1


async def test_a_long_run_is_dropped_in_small_transactions(
    store: Store, clock: ManualClock, source: MemorySource
) -> None:
    small = settings_with(prune_rows_max=10)
    harness = CollectorHarness(store, clock, MemoryArchive(), small, source)
    await harness.lead()
    deleted: list[int] = []
    await harness.handle_events(started(ranks=3), exited(ranks=3))
    await harness.settle()
    run = (await harness.rows(RunRow))[0]
    async with store.transaction() as tx:
        for rank in range(3):
            for number in range(15):
                offset = 1000 + number
                tx.put(EntryRow(run.task_id, run.attempt, rank, offset, at(0), at(1)))
        tx.put(EntryRow("other", 1, 0, 0, at(0), at(1)))
    store.observe(lambda delta: deleted.append(len(delta.deleted)))
    harness.clock.advance(91 * 86_400)
    assert await harness.run("drop") is None
    assert [row.task_id for row in await harness.rows(EntryRow)] == ["other"]
    assert await harness.rows(RunRow) == await harness.rows(OutputRow) == []
    assert len(deleted) > 4
    assert max(deleted) <= 10 + 3 + 1
