"""When each byte of an output was written."""

from __future__ import annotations

from collections.abc import Sequence

from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Write
from services.log_collector.domain import Timestamp
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import ReadRequest, ReadResult
from services.log_collector.store import OutputRow
from tests.kit.clock import at
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    collecting,
    exited,
    key_of,
    settings_with,
    started,
    stored,
    times_of,
    without_times,
)


async def test_each_read_has_its_time(harness: CollectorHarness, source: MemorySource) -> None:
    await harness.handle(started())
    for number in range(3):
        source.append(key_of(), b"line %d\n" % number)
        await harness.copy_and_record()
        harness.clock.advance(0.25)
    source.append(key_of(), b"begun")
    await harness.copy_and_record()
    harness.clock.advance(1)
    source.append(key_of(), b" ended\nlast\n")
    await harness.handle(exited())
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    wanted = [(0, 0.0), (7, 0.25), (14, 0.5), (21, 0.75), (26, 1.75)]
    found = await times_of(harness.archive, row)
    assert found == [Timestamp(offset, at(seconds)) for offset, seconds in wanted]
    published = [(chunk.offset, chunk.timestamps[0].offset) for chunk in harness.chunks]
    assert published == [(offset, offset) for offset, _ in wanted]
    assert [chunk.timestamps[0].at for chunk in harness.chunks] == [each.at for each in found]


async def test_a_clock_that_is_set_back_repeats_the_last_time(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    for seconds in (10, 3, 9, 11):
        harness.clock.current_time = at(seconds)
        source.append(key_of(), b"a line\n")
        await harness.copy_and_record()
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    found = await times_of(harness.archive, row)
    assert [each.at for each in found] == [at(10), at(10), at(10), at(11)]


class Dated(MemorySource):
    """Reports when each line was written: a second after the one before."""

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


async def test_the_times_of_the_source_are_kept() -> None:
    source = Dated()
    harness = await collecting(source)
    await harness.handle(started(), exited())
    source.append(key_of(), b"one\ntwo\n\r 10%\r 20%\nfour\nfive: in the future\n")
    harness.clock.current_time = at(3.5)
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
    published = [(each.offset, each.at) for chunk in harness.chunks for each in chunk.timestamps]
    assert published[:2] == [(0, at(0)), (4, at(1))]


async def test_a_read_in_the_middle_of_a_line_goes_on_with_its_time() -> None:
    source = Dated()
    settings = settings_with(read_bytes_max=4096)
    harness = await collecting(source, settings=settings)
    await harness.handle(started(), exited())
    source.append(key_of(), b"x" * 5000 + b"\nnext\n")
    harness.clock.current_time = at(100)
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    found = await times_of(harness.archive, row)
    assert found == [Timestamp(0, at(0)), Timestamp(4096, at(0)), Timestamp(5001, at(1))]


async def test_the_only_copy_keeps_its_times(source: MemorySource) -> None:
    """Bytes that are not recorded, of a source that is gone: with the time stamps that are there,
    unless these are damaged."""
    for damaged in (False, True):
        archive = MemoryArchive()
        harness = await collecting(source, archive)
        await harness.handle(started())
        harness.clock.current_time = at(0)
        source.append(key_of(), b"recorded|")
        await harness.settle()
        for seconds in (100, 101):
            harness.clock.current_time = at(seconds)
            source.append(key_of(), b"only")
            await harness.step("copy")
        if damaged:
            await archive.write(
                [Write(key_of(), 9, b"", (Timestamp(0, at(0)),), 1)], epoch=harness.epoch
            )
        source.outputs.clear()
        harness.clock.current_time = at(200)
        await harness.restart()
        await harness.handle(exited())
        await harness.settle()
        assert await stored(archive) == b"recorded|onlyonly"
        (row,) = await harness.rows(OutputRow)
        found = [(each.offset, each.at) for each in await times_of(archive, row)]
        beyond = [(9, at(200))] if damaged else [(9, at(100)), (13, at(101))]
        assert found == [(0, at(0)), *beyond]


async def test_times_go_on_where_an_old_version_kept_none(source: MemorySource) -> None:
    archive = MemoryArchive()
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"before\n")
    await harness.settle()
    await without_times(harness)
    harness.clock.current_time = at(500)
    await harness.restart()
    source.append(key_of(), b"after\n")
    await harness.settle()
    (row,) = await harness.rows(OutputRow)
    assert await times_of(archive, row) == [Timestamp(7, at(500))]
