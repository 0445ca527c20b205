from __future__ import annotations

import pytest

from libs.contracts.messages import ListLogs, ReadLog, ReadLogReply, RefusalCode
from libs.store.port import Store
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.domain import Timestamp
from services.log_collector.sources.memory import MemorySource
from services.log_collector.store import OutputRow, RunRow
from tests.services.log_collector.collector_harness import (
    Hands,
    World,
    at,
    exited,
    gang,
    key_of,
    settings_with,
    started,
    without_times,
)

LINES = b"".join(b"line %06d\n" % number for number in range(100_000))  # 12 bytes each


def read(**changes: object) -> ReadLog:
    return ReadLog.model_validate({"task_id": "t1", "attempt": 1} | changes)


async def test_a_range_is_read_while_it_grows(world: World, source: MemorySource) -> None:
    await world.tell(started())
    source.append(key_of(), b"0123456789")
    await world.step()
    whole = await world.ask(read())
    assert (whole.offset, whole.data, whole.size, whole.complete) == (0, b"0123456789", 10, False)
    part = await world.ask(read(offset=3, max_bytes=4))
    assert (part.offset, part.data) == (3, b"3456")
    tail = await world.ask(read(offset=-3))
    assert (tail.offset, tail.data) == (7, b"789")
    beyond = await world.ask(read(offset=99))
    assert (beyond.offset, beyond.data, beyond.size) == (10, b"", 10)
    long_ago = await world.ask(read(offset=-99))
    assert (long_ago.offset, long_ago.data) == (0, b"0123456789")


async def test_following_a_log_by_its_offsets_gives_all_of_it(
    world: World, source: MemorySource
) -> None:
    await world.tell(started())
    source.append(key_of(), LINES)
    await world.tell(exited())
    await world.settle()
    got, more = b"", True
    while more:
        reply = await world.ask(read(offset=len(got), max_bytes=400_000))
        assert len(reply.data) <= 400_000
        got += reply.data
        more = not (reply.complete and len(got) == reply.size)
    assert got == LINES


async def test_an_answer_is_bounded(world: World, source: MemorySource) -> None:
    await world.tell(started())
    source.append(key_of(), LINES)
    await world.settle()
    reply = await world.ask(read(max_bytes=1 << 30))
    assert len(reply.data) == 524_288
    assert len(reply.to_json()) < 1_000_000


@pytest.mark.parametrize("lines", [1, 7, 20_000, 100_000, 1_000_000])
async def test_the_last_lines(world: World, source: MemorySource, lines: int) -> None:
    await world.tell(started())
    source.append(key_of(), LINES)
    await world.settle()
    reply = await world.ask(read(tail_lines=lines))
    assert reply.offset == max(0, len(LINES) - 12 * lines)
    assert reply.data == LINES[reply.offset :][:524_288]


async def lines_each_second(world: World, source: MemorySource) -> None:
    """50 lines of 8 bytes: entries of the index have ten of them."""
    await world.tell(started())
    for number in range(50):
        source.append(key_of(), b"%07d\n" % number)
        await world.step()
        world.clock.advance(1)


async def test_since_begins_with_the_first_bytes_of_the_moment(
    world: World, source: MemorySource
) -> None:
    await lines_each_second(world, source)
    for seconds, offset in [(-5, 0), (0, 0), (9, 72), (9.5, 80), (10, 80), (35, 280), (49, 392)]:
        reply = await world.ask(read(since=at(seconds)))
        assert reply.offset == offset, seconds
    later = await world.ask(read(since=at(50)))
    assert (later.offset, later.data) == (400, b"")


async def older(world: World, store: Store, clock: Hands, source: MemorySource) -> World:
    """The same output, kept by a version without time stamps."""
    await world.settle()
    await without_times(world)
    made = World(store, clock, world.archive, world.settings, source, world.epoch)
    await made.lead()
    await made.step()
    return made


async def test_since_begins_with_the_entry_of_the_moment_where_no_times_are_kept(
    world: World, store: Store, clock: Hands, source: MemorySource
) -> None:
    await lines_each_second(world, source)
    world = await older(world, store, clock, source)
    for seconds, offset in [(-5, 0), (0, 0), (9, 0), (9.5, 80), (10, 80), (35, 240), (49, 320)]:
        reply = await world.ask(read(since=at(seconds)))
        assert reply.offset == offset, seconds
    later = await world.ask(read(since=at(50)))
    assert (later.offset, later.data) == (400, b"")
    # New output has its time stamps, and what is older is not skipped for that.
    clock.moment = at(500)
    source.append(key_of(), b"new\n")
    await world.settle()
    for seconds, offset in [(0, 0), (35, 240), (50, 400), (500, 400), (501, 404)]:
        assert (await world.ask(read(since=at(seconds)))).offset == offset, seconds


def told(reply: ReadLogReply) -> list[tuple[int, float]]:
    return [(each.offset, (each.at - at(0)).total_seconds()) for each in reply.timestamps]


async def test_an_answer_says_when_its_bytes_were_written_if_asked(
    world: World, source: MemorySource
) -> None:
    await lines_each_second(world, source)
    for _ in range(2):  # what is not recorded yet, and what is
        reply = await world.ask(read(timestamps=True))
        assert told(reply) == [(8 * number, number) for number in range(50)]
        assert not reply.approximate
        part = await world.ask(read(timestamps=True, offset=12, max_bytes=10))
        assert part.data == b"001\n000000"
        assert told(part) == [(12, 1), (16, 2)]
        last = await world.ask(read(timestamps=True, tail_lines=1))
        assert told(last) == [(392, 49)]
        assert (await world.ask(read())).timestamps == ()
        assert (await world.ask(read(timestamps=True, offset=400))).timestamps == ()
        await world.tell(exited())
        await world.settle()


async def test_an_answer_with_times_is_bounded(world: World, source: MemorySource) -> None:
    key = key_of()
    stamps = [Timestamp(100 * number, at(number)) for number in range(10_000)]
    await world.archive.write([Write(key, 0, b"x" * 1_000_000, stamps)])
    async with world.store.transaction(epoch=world.epoch) as tx:
        tx.put(
            RunRow("t1", 1, gang(1), at(0), collected=True),
            OutputRow("t1", 1, 0, 1_000_000, False, True, at(0), timestamps=10_000),
        )
    found: list[tuple[int, float]] = []
    offset = 0
    while offset < 1_000_000:
        reply = await world.ask(read(timestamps=True, offset=offset, max_bytes=1 << 30))
        assert len(reply.to_json()) < 1_000_000
        assert len(reply.timestamps) <= 4096
        assert reply.data
        assert reply.timestamps[0].offset == offset
        found += told(reply)
        offset += len(reply.data)
    assert [pair for pair in found if pair[0] % 100 == 0] == [(100 * n, n) for n in range(10_000)]


async def test_times_of_older_output_are_called_approximate(
    world: World, store: Store, clock: Hands, source: MemorySource
) -> None:
    await lines_each_second(world, source)
    world = await older(world, store, clock, source)
    clock.moment = at(500)
    source.append(key_of(), b"new\n")
    await world.step()
    reply = await world.ask(read(timestamps=True))
    # It ends where the times become exact.
    assert (len(reply.data), reply.approximate) == (400, True)
    assert told(reply) == [(0, 0), (80, 10), (160, 20), (240, 30), (320, 40)]
    part = await world.ask(read(timestamps=True, offset=100, max_bytes=100))
    assert (told(part), part.approximate) == ([(100, 10), (160, 20)], True)
    new = await world.ask(read(timestamps=True, offset=400))
    assert (told(new), new.approximate) == ([(400, 500)], False)


async def test_since_skips_nothing_of_its_own_moment(
    store: Store, clock: Hands, source: MemorySource
) -> None:
    """Much at once makes several entries of one moment."""
    settings = settings_with(index_bytes=4096)
    world = World(store, clock, MemoryArchive(), settings, source)
    await world.lead()
    await world.tell(started())
    for _ in range(3):
        source.append(key_of(), b"x" * 4096)
        await world.step()
    await world.tell(exited())
    await world.settle()
    assert (await world.ask(read(since=at(0)))).offset == 0


async def test_attempt_zero_is_the_newest(world: World, source: MemorySource) -> None:
    source.append(key_of(attempt=1), b"one")
    source.append(key_of(attempt=2), b"two")
    await world.tell(started(attempt=2), started(attempt=1), exited(attempt=1))
    await world.settle()
    assert (await world.ask(read(attempt=0))).data == b"two"
    assert (await world.ask(read(attempt=1))).data == b"one"


async def test_what_is_not_known_is_not_found(world: World) -> None:
    await world.tell(started(2))
    for query in (read(task_id="t2"), read(attempt=2), read(rank=2), read(rank=-1)):
        reply = await world.ask(query)
        assert reply.refusal.code is RefusalCode.NOT_FOUND
        assert reply.refusal.errors[0].fix


async def test_a_disk_that_refuses_is_a_refusal(
    world: World, source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.tell(started())
    source.append(key_of(), b"x")
    await world.step()

    async def refuse(*_: object) -> bytes:
        raise ArchiveError("I/O error")

    monkeypatch.setattr(MemoryArchive, "read", refuse)
    assert (await world.ask(read())).refusal.code is RefusalCode.UNAVAILABLE


async def test_outputs_are_listed_in_order(world: World, source: MemorySource) -> None:
    assert (await world.ask(ListLogs(task_id="t1"))).logs == ()
    await world.tell(started(2, attempt=2), started(1, attempt=1), exited(1, attempt=1))
    source.append(key_of(0, attempt=1), b"abc")
    source.append(key_of(1, attempt=2), b"de")
    await world.step()
    await world.step()
    logs = (await world.ask(ListLogs(task_id="t1"))).logs
    assert [(log.attempt, log.rank, log.size, log.complete) for log in logs] == [
        (1, 0, 3, True),
        (2, 0, 0, False),
        (2, 1, 2, False),
    ]
    assert logs[2].placement.node_id == "n1"
    assert logs[2].role == "worker"


async def test_of_very_many_outputs_the_newest_are_listed(world: World) -> None:
    for attempt in (1, 2, 3):
        await world.tell(started(2000, attempt=attempt))
    logs = (await world.ask(ListLogs(task_id="t1"))).logs
    assert {log.attempt for log in logs} == {2, 3}
    assert len(logs) == 4000
