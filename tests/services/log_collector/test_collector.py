from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from libs.bus.port import BusUnavailableError
from libs.contracts.envelope import Envelope
from libs.store.memory import Point, no_fault
from libs.store.port import Store, StoreUnavailableError, TermOverError
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.collector import KEEP_OUTPUTS_MAX
from services.log_collector.domain import Address, OutputKey, limit_line
from services.log_collector.recorder import OUTPUTS_MAX
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import ReadRequest, ReadResult
from services.log_collector.store import EntryRow, OutputRow, RunRow
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    collecting,
    exited,
    gang,
    key_of,
    settings_with,
    started,
    stored,
    times_of,
)


async def test_output_is_copied_recorded_and_completed(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started(2))
    source.append(key_of(0), b"one\n")
    await harness.copy_and_record()
    source.append(key_of(0), b"two\n")
    source.append(key_of(1), b"\xff\x00half a line")
    await harness.copy_and_record()
    assert await stored(harness.archive, 0) == b"one\ntwo\n"
    assert await stored(harness.archive, 1) == b"\xff\x00half a line"
    await harness.handle(exited(2))
    source.append(key_of(1), b" and its end")
    await harness.settle()
    rows = await harness.rows(OutputRow)
    assert [(row.rank, row.size, row.complete) for row in rows] == [(0, 8, True), (1, 25, True)]
    assert [row.collected for row in await harness.rows(RunRow)] == [True]
    assert await harness.copy_and_record() is None


async def test_a_run_known_only_by_its_exit_is_collected(
    harness: CollectorHarness, source: MemorySource
) -> None:
    source.append(key_of(), b"it ran\n")
    await harness.handle(exited(), started())
    await harness.settle()
    assert await stored(harness.archive) == b"it ran\n"
    assert (await harness.rows(OutputRow))[0].complete
    await harness.handle(started(), exited())  # repeated: nothing starts again
    assert await harness.copy_and_record() is None


async def test_an_output_that_never_was_is_complete_and_empty(harness: CollectorHarness) -> None:
    await harness.handle(started(), exited())
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (0, True)


async def test_an_idle_collector_writes_nothing(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"x")
    await harness.settle()
    (before,) = await harness.rows(OutputRow)
    for _ in range(5):
        harness.clock.advance(10)
        assert await harness.copy_and_record() == 0.1
    assert await harness.rows(OutputRow) == [before]


async def test_live_readers_get_whole_lines(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started(2))
    source.append(key_of(1), b"first\nsecond\n" * 10_000)
    await harness.copy_and_record()
    published = harness.chunks
    assert b"".join(chunk.data for chunk in published) == b"first\nsecond\n" * 10_000
    assert all(len(chunk.data) <= 65_536 and chunk.data.endswith(b"\n") for chunk in published)
    assert {(chunk.task_id, chunk.attempt, chunk.rank, chunk.role) for chunk in published} == {
        ("t1", 1, 1, "worker")
    }


async def test_live_readers_get_the_end_of_a_burst_and_all_of_it_is_kept(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    burst = b"%07d\n" * 125_000 % tuple(range(125_000))
    source.append(key_of(), burst)
    await harness.settle()
    assert await stored(harness.archive) == burst
    published = harness.chunks
    assert sum(len(chunk.data) for chunk in published) == settings_with().live_bytes_max
    for chunk in published:
        assert burst[chunk.offset :].startswith(chunk.data)


async def test_a_bus_that_is_down_does_not_stop_the_copying(
    harness: CollectorHarness, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_envelope: Envelope) -> None:
        raise BusUnavailableError("down")

    monkeypatch.setattr(harness.bus, "send_telemetry", down)
    await harness.handle(started())
    source.append(key_of(), b"kept all the same")
    await harness.settle()
    assert await stored(harness.archive) == b"kept all the same"


async def test_the_limit_is_noted_and_ends_the_copying(source: MemorySource) -> None:
    limited = settings_with(output_bytes_max=1024)
    harness = await collecting(source, settings=limited)
    await harness.handle(started())
    source.append(key_of(), b"a" * 1000)
    await harness.copy_and_record()
    source.append(key_of(), b"b" * 1000)
    await harness.settle()
    source.append(key_of(), b"c" * 1000)
    await harness.settle()
    wanted = b"a" * 1000 + b"b" * 24 + limit_line(1024)
    assert await stored(harness.archive) == wanted
    await harness.restart()
    await harness.handle(exited())
    await harness.settle()
    assert await stored(harness.archive) == wanted
    (row,) = await harness.rows(OutputRow)
    assert (row.full, row.complete, row.size) == (True, True, len(wanted))


async def test_one_loud_rank_does_not_silence_the_others(source: MemorySource) -> None:
    harness = await collecting(
        source, settings=settings_with(read_bytes_max=4096, pass_bytes_max=8192)
    )
    await harness.handle(started(4))
    for _ in range(40):
        for rank in range(3):
            source.append(key_of(rank), b"." * 4096)
        source.append(key_of(3), b"here\n")
        await harness.copy_and_record()
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
    source = Broken()
    harness = await collecting(source)
    await harness.handle(started(), exited())
    source.append(key_of(), b"late but there")
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    source.problem = ""
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert await stored(harness.archive) == b"late but there"

    source.problem = "Input/output error"
    await harness.handle(started(attempt=2), exited(attempt=2, seconds=200))
    await harness.settle()
    assert not (await harness.rows(RunRow))[1].collected
    harness.clock.current_time = at(200 + 301)
    await harness.settle()
    assert (await harness.rows(RunRow))[1].collected
    assert await harness.archive.read(key_of(attempt=2), 0, 1000) == (
        b"[shiftwork: output is missing from here on: Input/output error]\n"
    )


@pytest.mark.parametrize("removed", [False, True])
async def test_output_that_was_truncated_at_its_source_ends_with_a_note(
    tmp_path: Path, removed: bool
) -> None:
    """Never as if it were complete."""
    archive = MemoryArchive()
    harness = await collecting(FileSource(tmp_path), archive)
    path = output_path(tmp_path, Address(key_of(), gang(1)[0].node_id))
    path.parent.mkdir(parents=True)
    before = b"".join(b"%d\n" % number for number in range(1000))
    path.write_bytes(before)
    await harness.handle(started())
    await harness.settle()
    assert await stored(archive) == before
    if removed:
        path.unlink()
    else:
        path.write_bytes(b"x\n" * 202)
    await harness.settle()
    # While the run lives its writer may restore the file's length.
    assert await stored(archive) == before
    await harness.handle(exited())
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    why = b"its file was removed" if removed else b"its file was cut to 404 of 3890 bytes"
    text = before + b"[shiftwork: output is missing from here on: " + why + b"]\n"
    assert await stored(archive) == text
    # The next leader finds it reported already.
    await harness.restart()
    await harness.settle()
    assert await stored(archive) == text


class FullDisk(MemoryArchive):
    full = True

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        if self.full:
            raise ArchiveError("[Errno 28] No space left on device")
        await super().write(writes, epoch=epoch)


async def test_a_full_disk_is_waited_out(source: MemorySource) -> None:
    archive = FullDisk()
    harness = await collecting(source, archive)
    await harness.handle(started(), exited())
    source.append(key_of(), b"all of it")
    assert await harness.copy_and_record() == 5.0
    assert await harness.rows(OutputRow) == []
    archive.full = False
    await harness.settle()
    assert await stored(archive) == b"all of it"


class RefusesSecond(MemoryArchive):
    """Refuses the second batch of writes."""

    batches = 0

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        self.batches += 1
        if self.batches == 2:
            raise ArchiveError("[Errno 28] No space left on device")
        await super().write(writes, epoch=epoch)


async def test_live_readers_of_the_first_outputs_do_not_wait_for_the_disk_of_the_last(
    source: MemorySource,
) -> None:
    ranks = KEEP_OUTPUTS_MAX + 1
    harness = await collecting(source, archive := RefusesSecond())
    await harness.handle(started(ranks))
    for rank in range(ranks):
        source.append(key_of(rank), b"a line\n")
    assert await harness.step("copy") == 5.0
    assert len(harness.chunks) == KEEP_OUTPUTS_MAX
    await harness.handle(exited(ranks))
    await harness.settle()
    assert sorted(chunk.rank for chunk in harness.chunks) == list(range(ranks))
    assert {await stored(archive, rank) for rank in range(ranks)} == {b"a line\n"}


async def test_outputs_are_recorded_in_batches_each_of_which_counts(source: MemorySource) -> None:
    ranks, commits = OUTPUTS_MAX + 1, 0
    platform = MemoryPlatform()
    harness = await collecting(source, archive := MemoryArchive(), platform=platform)
    await harness.handle(started(ranks))
    for rank in range(ranks):
        source.append(key_of(rank), b"a line\n")
    await harness.step("copy")

    async def second(point: Point, _schema: str) -> None:
        nonlocal commits
        commits += point is Point.BEFORE_COMMIT
        if commits == 2:
            raise StoreUnavailableError("gone")

    platform.database.fault = second
    with pytest.raises(StoreUnavailableError):
        await harness.step("record")
    platform.database.fault = no_fault
    assert len(await harness.rows(OutputRow)) == OUTPUTS_MAX
    await harness.restart()
    await harness.handle(exited(ranks))
    await harness.settle()
    assert {row.size for row in await harness.rows(OutputRow)} == {7}
    assert {await stored(archive, rank) for rank in range(ranks)} == {b"a line\n"}
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


class SlowDisk(MemoryArchive):
    def __init__(self) -> None:
        super().__init__()
        self.syncing, self.go_on = asyncio.Event(), asyncio.Event()

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        await super().sync(keys)
        self.syncing.set()
        await self.go_on.wait()


async def test_bytes_during_a_slow_sync_are_copied_and_recorded_next(source: MemorySource) -> None:
    archive = SlowDisk()
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"before ")
    await harness.step("copy")
    async with asyncio.TaskGroup() as group:
        recording = group.create_task(harness.step("record"))
        await archive.syncing.wait()
        source.append(key_of(), b"during")
        harness.clock.advance(60)
        await harness.step("copy")
        assert await stored(archive) == b"before during"
        await harness.handle(exited())
        await harness.step("copy")
        archive.go_on.set()
        assert await recording == settings_with().record_seconds
    assert [(row.size, row.complete) for row in await harness.rows(OutputRow)] == [(7, False)]
    await harness.step("record")
    assert [(row.size, row.complete) for row in await harness.rows(OutputRow)] == [(13, True)]
    assert [row.collected for row in await harness.rows(RunRow)] == [True]


async def test_a_former_leader_that_does_not_know_it_yet_changes_nothing(
    source: MemorySource,
) -> None:
    """Both read at other moments: their time stamps would not fit together."""
    archive, platform = MemoryArchive(), MemoryPlatform()
    former = await collecting(source, archive, platform=platform)
    await former.handle(started())
    source.append(key_of(), b"step 1\n")
    await former.copy_and_record()
    platform.database.cut_leader("log_collector", notice_seconds=60.0)
    harness = await collecting(source, archive, platform=platform)
    source.append(key_of(), b"step 2\n")
    await harness.copy_and_record()
    harness.clock.advance(1)
    source.append(key_of(), b"step 3\n")
    await harness.copy_and_record()
    with pytest.raises(TermOverError):
        await former.step("copy")
    source.append(key_of(), b"step 4\n")
    await harness.handle(exited())
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert [each.offset for each in await times_of(archive, row)] == [0, 7, 14, 21]


async def test_a_new_leader_goes_on_where_the_database_ends(source: MemorySource) -> None:
    archive = MemoryArchive()
    harness = await collecting(source, archive)
    await harness.handle(started(2))
    source.append(key_of(0), b"recorded|")
    await harness.settle()
    source.append(key_of(0), b"unrecorded")
    await harness.copy_and_record()
    await archive.sync([key_of(0)])
    await harness.restart()
    await harness.copy_and_record()
    source.append(key_of(0), b", and more")
    await harness.settle()
    assert await stored(archive) == b"recorded|unrecorded, and more"


async def test_unrecorded_bytes_stay_if_the_source_is_gone(source: MemorySource) -> None:
    archive = MemoryArchive()
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    source.append(key_of(), b"the only copy")
    await harness.copy_and_record()
    source.outputs.clear()
    await harness.restart()
    await harness.handle(exited())
    await harness.settle()
    assert await stored(archive) == b"recorded|the only copy"
    (row,) = await harness.rows(OutputRow)
    assert (row.size, row.complete) == (22, True)


async def test_what_the_archive_lost_is_read_again(source: MemorySource) -> None:
    archive = MemoryArchive()
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"0123456789")
    await harness.settle()
    await archive.truncate(key_of(), 4, 1, epoch=harness.epoch)
    await harness.restart()
    await harness.settle()
    assert await stored(archive) == b"0123456789"
    (row,) = await harness.rows(OutputRow)
    assert [each.offset for each in await times_of(archive, row)] == [0, 4]


async def test_a_progress_bar_is_kept_as_few_lines_and_published_at_a_bounded_rate(
    harness: CollectorHarness, source: MemorySource
) -> None:
    """100,000 states in ten minutes: the last one is kept with its line, few others are."""
    await harness.handle(started())
    source.append(key_of(), b"begin\n")
    for second in range(600):
        for tenth in range(10):
            number = second * 167 + tenth
            source.append(key_of(), b"".join(b"\r%6d|####" % (number + i) for i in range(16)))
            await harness.copy_and_record()
            harness.clock.advance(0.1)
    lines = [chunk for chunk in harness.chunks if chunk.line]
    assert len(lines) <= 2 * 600 + 2
    assert all(chunk.data == b"" and chunk.line.startswith(b"\r") for chunk in lines)
    source.append(key_of(), b"\r100000|####\nnext\n")
    await harness.copy_and_record()
    output = await stored(harness.archive)
    assert output.startswith(b"begin\n\r")
    assert output.endswith(b"\r100000|####\nnext\n")
    assert output.count(b"\r") <= 16


async def test_a_bar_that_nothing_follows_is_kept_at_the_end(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"\r 10%\r 20%")
    await harness.copy_and_record()
    assert await stored(harness.archive) == b""
    assert [chunk.line for chunk in harness.chunks] == [b"\r 20%"]
    source.append(key_of(), b"\r 30%")
    await harness.handle(exited())
    await harness.settle()
    assert await stored(harness.archive) == b"\r 30%"


async def test_a_state_of_a_bar_is_kept_while_it_goes_on(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"\r 10%")
    await harness.copy_and_record()
    harness.clock.advance(2)
    await harness.copy_and_record()
    assert await stored(harness.archive) == b"\r 10%"


async def test_a_prompt_is_kept_and_published_at_once(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"loading")
    await harness.copy_and_record()
    assert await stored(harness.archive) == b"loading"
    assert [chunk.data for chunk in harness.chunks] == [b"loading"]


async def test_a_state_of_any_length_is_bounded(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"\r" + b"x" * 1_000_000)
    await harness.settle()
    assert await stored(harness.archive) == b"\r" + b"x" * 1_000_000


async def test_no_entry_of_the_index_of_times_is_written(
    harness: CollectorHarness, source: MemorySource
) -> None:
    """The time stamps of the output have what it had."""
    await harness.handle(started())
    source.append(key_of(), b"a line\n")
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert (row.timestamps, await harness.rows(EntryRow)) == (1, [])


async def test_old_output_is_dropped(harness: CollectorHarness, source: MemorySource) -> None:
    for attempt in (1, 2):
        source.append(key_of(attempt=attempt), b"bytes")
    await harness.handle(started(), exited(), started(attempt=2))
    await harness.settle()
    harness.clock.advance(91 * 86_400)
    assert await harness.step("drop") is None
    assert [(row.attempt, row.collected) for row in await harness.rows(RunRow)] == [(2, False)]
    assert [row.attempt for row in await harness.rows(OutputRow)] == [2]
    assert await harness.archive.size(key_of(attempt=1)) == 0
    assert await harness.archive.size(key_of(attempt=2)) == 5
    assert await harness.archive.timestamps(key_of(attempt=1), 0, 9) == []
    assert len(await harness.archive.timestamps(key_of(attempt=2), 0, 9)) == 1


async def test_a_long_run_is_dropped_in_small_transactions(
    store: Store, platform: MemoryPlatform, source: MemorySource
) -> None:
    small = settings_with(prune_rows_max=10)
    harness = await collecting(source, settings=small, platform=platform, store=store)
    deleted: list[int] = []
    await harness.handle(started(ranks=3), exited(ranks=3))
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
    assert await harness.step("drop") is None
    assert [row.task_id for row in await harness.rows(EntryRow)] == ["other"]
    assert await harness.rows(RunRow) == await harness.rows(OutputRow) == []
    assert len(deleted) > 4
    assert max(deleted) <= 10 + 3 + 1
