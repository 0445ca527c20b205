from __future__ import annotations

import pytest

from libs.contracts.messages import ListLogs, ReadLog, ReadLogReply, RefusalCode
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.domain import Timestamp
from services.log_collector.sources.memory import MemorySource
from services.log_collector.store import EntryRow, OutputRow, RunRow
from tests.kit.clock import at
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    exited,
    gang,
    key_of,
    started,
    without_times,
)

LINES = b"".join(b"line %06d\n" % number for number in range(100_000))  # 12 bytes each


def read(**changes: object) -> ReadLog:
    return ReadLog.model_validate({"task_id": "t1", "attempt": 1} | changes)


async def test_a_range_is_read_while_it_grows(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"0123456789")
    await harness.copy_and_record()
    whole = await harness.ask(read())
    assert (whole.offset, whole.data, whole.size, whole.complete) == (0, b"0123456789", 10, False)
    part = await harness.ask(read(offset=3, max_bytes=4))
    assert (part.offset, part.data) == (3, b"3456")
    tail = await harness.ask(read(offset=-3))
    assert (tail.offset, tail.data) == (7, b"789")
    beyond = await harness.ask(read(offset=99))
    assert (beyond.offset, beyond.data, beyond.size) == (10, b"", 10)
    long_ago = await harness.ask(read(offset=-99))
    assert (long_ago.offset, long_ago.data) == (0, b"0123456789")


async def test_following_a_log_by_its_offsets_gives_all_of_it(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    source.append(key_of(), LINES)
    await harness.handle(exited())
    await harness.settle()
    got, more = b"", True
    while more:
        reply = await harness.ask(read(offset=len(got), max_bytes=400_000))
        assert len(reply.data) <= 400_000
        got += reply.data
        more = not (reply.complete and len(got) == reply.size)
    assert got == LINES


async def test_an_answer_is_bounded(harness: CollectorHarness, source: MemorySource) -> None:
    await harness.handle(started())
    source.append(key_of(), LINES)
    await harness.settle()
    reply = await harness.ask(read(max_bytes=1 << 30))
    assert len(reply.data) == 524_288
    assert len(reply.to_json()) < 1_000_000


@pytest.mark.parametrize("lines", [1, 7, 20_000, 100_000, 1_000_000])
async def test_the_last_lines(harness: CollectorHarness, source: MemorySource, lines: int) -> None:
    await harness.handle(started())
    source.append(key_of(), LINES)
    await harness.settle()
    reply = await harness.ask(read(tail_lines=lines))
    assert reply.offset == max(0, len(LINES) - 12 * lines)
    assert reply.data == LINES[reply.offset :][:524_288]


async def lines_each_second(harness: CollectorHarness, source: MemorySource) -> None:
    """50 lines of 8 bytes."""
    await harness.handle(started())
    for number in range(50):
        source.append(key_of(), b"%07d\n" % number)
        await harness.copy_and_record()
        harness.clock.advance(1)


async def test_since_begins_with_the_first_bytes_of_that_time(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await lines_each_second(harness, source)
    for seconds, offset in [(-5, 0), (0, 0), (9, 72), (9.5, 80), (10, 80), (35, 280), (49, 392)]:
        reply = await harness.ask(read(since=at(seconds)))
        assert reply.offset == offset, seconds
    later = await harness.ask(read(since=at(50)))
    assert (later.offset, later.data) == (400, b"")


async def upgrade(harness: CollectorHarness) -> None:
    """The same output, kept by a version without time stamps, and a new process."""
    await harness.settle()
    await without_times(harness)
    harness.service = harness._build(harness.store)
    await harness.lead()
    await harness.copy_and_record()


async def test_since_begins_with_the_entry_of_that_time_where_no_timestamps_are_kept(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await lines_each_second(harness, source)
    await upgrade(harness)
    for seconds, offset in [(-5, 0), (0, 0), (9, 0), (9.5, 80), (10, 80), (35, 240), (49, 320)]:
        reply = await harness.ask(read(since=at(seconds)))
        assert reply.offset == offset, seconds
    later = await harness.ask(read(since=at(50)))
    assert (later.offset, later.data) == (400, b"")
    # New output has its time stamps, and what is older is not skipped for that.
    harness.clock.current_time = at(500)
    source.append(key_of(), b"new\n")
    await harness.settle()
    for seconds, offset in [(0, 0), (35, 240), (50, 400), (500, 400), (501, 404)]:
        assert (await harness.ask(read(since=at(seconds)))).offset == offset, seconds


def published(reply: ReadLogReply) -> list[tuple[int, float]]:
    return [(each.offset, (each.at - at(0)).total_seconds()) for each in reply.timestamps]


async def test_an_answer_has_write_times_if_requested(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await lines_each_second(harness, source)
    for _ in range(2):  # what is not recorded yet, and what is
        reply = await harness.ask(read(timestamps=True))
        assert published(reply) == [(8 * number, number) for number in range(50)]
        assert not reply.approximate
        part = await harness.ask(read(timestamps=True, offset=12, max_bytes=10))
        assert part.data == b"001\n000000"
        assert published(part) == [(12, 1), (16, 2)]
        last = await harness.ask(read(timestamps=True, tail_lines=1))
        assert published(last) == [(392, 49)]
        assert (await harness.ask(read())).timestamps == ()
        assert (await harness.ask(read(timestamps=True, offset=400))).timestamps == ()
        await harness.handle(exited())
        await harness.settle()


async def test_an_answer_with_times_is_bounded(
    harness: CollectorHarness, source: MemorySource
) -> None:
    key = key_of()
    stamps = [Timestamp(100 * number, at(number)) for number in range(10_000)]
    await harness.archive.write([Write(key, 0, b"x" * 1_000_000, stamps)], epoch=harness.epoch)
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        tx.put(
            RunRow("t1", 1, gang(1), at(0), collected=True),
            OutputRow("t1", 1, 0, 1_000_000, False, True, at(0), timestamps=10_000),
        )
    found: list[tuple[int, float]] = []
    offset = 0
    while offset < 1_000_000:
        reply = await harness.ask(read(timestamps=True, offset=offset, max_bytes=1 << 30))
        assert len(reply.to_json()) < 1_000_000
        assert len(reply.timestamps) <= 4096
        assert reply.data
        assert reply.timestamps[0].offset == offset
        found += published(reply)
        offset += len(reply.data)
    assert [pair for pair in found if pair[0] % 100 == 0] == [(100 * n, n) for n in range(10_000)]


async def test_times_of_older_output_are_called_approximate(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await lines_each_second(harness, source)
    await upgrade(harness)
    harness.clock.current_time = at(500)
    source.append(key_of(), b"new\n")
    await harness.copy_and_record()
    reply = await harness.ask(read(timestamps=True))
    # It ends where the times become exact.
    assert (len(reply.data), reply.approximate) == (400, True)
    assert published(reply) == [(0, 0), (80, 10), (160, 20), (240, 30), (320, 40)]
    part = await harness.ask(read(timestamps=True, offset=100, max_bytes=100))
    assert (published(part), part.approximate) == ([(100, 10), (160, 20)], True)
    new = await harness.ask(read(timestamps=True, offset=400))
    assert (published(new), new.approximate) == ([(400, 500)], False)


async def test_since_skips_nothing_of_its_own_time(
    harness: CollectorHarness, source: MemorySource
) -> None:
    """Much output at once made several entries of one time."""
    await harness.handle(started(), exited())
    source.append(key_of(), b"x" * 12_288)
    await harness.settle()
    await without_times(harness)
    async with harness.store.transaction(epoch=harness.epoch) as tx:
        tx.put(*(EntryRow("t1", 1, 0, offset, at(0), at(0)) for offset in (0, 4096, 8192)))
    assert (await harness.ask(read(since=at(0)))).offset == 0


async def test_attempt_zero_is_the_newest(harness: CollectorHarness, source: MemorySource) -> None:
    source.append(key_of(attempt=1), b"one")
    source.append(key_of(attempt=2), b"two")
    await harness.handle(started(attempt=2), started(attempt=1), exited(attempt=1))
    await harness.settle()
    assert (await harness.ask(read(attempt=0))).data == b"two"
    assert (await harness.ask(read(attempt=1))).data == b"one"


async def test_unknown_output_is_not_found(harness: CollectorHarness) -> None:
    await harness.handle(started(2))
    for query in (read(task_id="t2"), read(attempt=2), read(rank=2), read(rank=-1)):
        reply = await harness.ask(query)
        assert reply.refusal.code is RefusalCode.NOT_FOUND
        assert reply.refusal.errors[0].fix


async def test_a_disk_that_refuses_is_a_refusal(
    harness: CollectorHarness, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.handle(started())
    source.append(key_of(), b"x")
    await harness.copy_and_record()

    async def refuse(*_: object) -> bytes:
        raise ArchiveError("I/O error")

    monkeypatch.setattr(MemoryArchive, "read", refuse)
    assert (await harness.ask(read())).refusal.code is RefusalCode.UNAVAILABLE


async def test_outputs_are_listed_in_order(harness: CollectorHarness, source: MemorySource) -> None:
    assert (await harness.ask(ListLogs(task_id="t1"))).logs == ()
    await harness.handle(started(2, attempt=2), started(1, attempt=1), exited(1, attempt=1))
    source.append(key_of(0, attempt=1), b"abc")
    source.append(key_of(1, attempt=2), b"de")
    await harness.copy_and_record()
    await harness.copy_and_record()
    logs = (await harness.ask(ListLogs(task_id="t1"))).logs
    assert [(log.attempt, log.rank, log.size, log.complete) for log in logs] == [
        (1, 0, 3, True),
        (2, 0, 0, False),
        (2, 1, 2, False),
    ]
    assert logs[2].placement.node_id == "n1"
    assert logs[2].role == "worker"


async def test_of_very_many_outputs_the_newest_are_listed(harness: CollectorHarness) -> None:
    for attempt in (1, 2, 3):
        await harness.handle(started(2000, attempt=attempt))
    logs = (await harness.ask(ListLogs(task_id="t1"))).logs
    assert {log.attempt for log in logs} == {2, 3}
    assert len(logs) == 4000
