"""A source that cannot report with certainty: nothing is completed, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Write
from services.log_collector.domain import Address
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored
from services.log_collector.store import RunRow
from tests.services.log_collector.collector_harness import (
    collecting,
    exited,
    key_of,
    settings_with,
    started,
    stored,
)


class Doubtful(MemorySource):
    """Cannot report with certainty, until it can; records its requests and notifications."""

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


async def test_an_output_ends_only_on_a_certain_answer() -> None:
    source = Doubtful()
    harness = await collecting(source)
    await harness.handle(started(), exited())
    source.append(key_of(), b"flushed late")
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    assert [request.sure for request in source.requests] == [True]
    source.unsure = False
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert await stored(harness.archive) == b"flushed late"


async def test_uncertainty_is_waited_for_but_not_for_ever(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = Doubtful()
    harness = await collecting(source)
    await harness.handle(started(), exited())
    harness.clock.advance(299)
    await harness.copy_and_record()
    assert not (await harness.rows(RunRow))[0].collected
    # The time without a collector does not count.
    harness.clock.advance(1000)
    await harness.restart()
    await harness.settle()
    assert not (await harness.rows(RunRow))[0].collected
    harness.clock.advance(300)
    await harness.settle()
    assert (await harness.rows(RunRow))[0].collected
    assert "output is given up" in capsys.readouterr().out


async def test_the_source_is_shown_the_last_bytes_that_are_kept() -> None:
    source = Doubtful()
    source.unsure = False
    harness = await collecting(source)
    await harness.handle(started())
    source.append(key_of(), b"a" * 60)
    await harness.copy_and_record()
    source.append(key_of(), b"b" * 10)
    await harness.settle()
    (request,) = source.requests
    assert (request.offset, request.before, request.sure) == (70, b"a" * 54 + b"b" * 10, False)
    await harness.restart()
    await harness.copy_and_record()
    assert source.requests == [request]


async def test_unrecorded_bytes_are_resolved_when_the_source_answers() -> None:
    """Bytes beyond the recorded size may be damaged; the source has them still."""
    source, archive = Doubtful(), MemoryArchive()
    source.unsure = False
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    await archive.write([Write(key_of(), 9, b"\0\0\0\0")], epoch=harness.epoch)
    source.append(key_of(), b"more")
    source.unsure = True
    await harness.restart()
    for _ in range(3):
        assert await harness.copy_and_record() == 0.1
        harness.clock.advance(1)
    source.unsure = False
    await harness.handle(exited())
    await harness.settle()
    assert await stored(archive) == b"recorded|more"
    assert (await harness.rows(RunRow))[0].collected


async def test_unrecorded_bytes_are_kept_if_the_source_stays_silent() -> None:
    source, archive = Doubtful(), MemoryArchive()
    source.unsure = False
    harness = await collecting(source, archive)
    await harness.handle(started())
    source.append(key_of(), b"recorded|")
    await harness.settle()
    await archive.write([Write(key_of(), 9, b"the only copy")], epoch=harness.epoch)
    source.unsure = True
    await harness.restart()
    await harness.handle(exited())
    await harness.copy_and_record()
    harness.clock.advance(301)
    await harness.copy_and_record()
    harness.clock.advance(301)
    await harness.settle()
    notice = b"[shiftwork: output is missing from here on: its source did not answer]\n"
    assert await stored(archive) == b"recorded|the only copy" + notice
    assert (await harness.rows(RunRow))[0].collected


async def test_only_recorded_bytes_are_reported_to_the_source() -> None:
    source = Doubtful()
    source.unsure = False
    harness = await collecting(source)
    place = Address(key_of(), "n0")
    await harness.handle(started())
    source.append(key_of(), b"12345")
    await harness.step("copy")
    assert source.published == []
    await harness.step("record")
    assert source.published == [Stored(place, 5, done=False)]
    await harness.handle(exited())
    await harness.settle()
    assert source.published[-1] == Stored(place, 5, done=True)
    # The successor of a process that died before reporting it reports it.
    source.published.clear()
    await harness.restart()
    assert source.published == [Stored(place, 0, done=True)]
    harness.clock.advance(3601)
    source.published.clear()
    await harness.restart()
    assert source.published == []


async def test_the_source_keeps_a_line_that_may_still_be_overwritten() -> None:
    source = Doubtful()
    source.unsure = False
    harness = await collecting(source)
    await harness.handle(started())
    source.append(key_of(), b"begins\n\r 10%\r 20%")
    await harness.copy_and_record()
    # The line before the bar is kept, the bar's first state skipped, and its second one neither.
    assert source.published == [Stored(Address(key_of(), "n0"), len(b"begins\n\r 10%"), done=False)]
    await harness.restart()
    await harness.copy_and_record()
    await harness.handle(exited())
    await harness.settle()
    assert await stored(harness.archive) == b"begins\n\r 20%"
    assert source.published[-1] == Stored(
        Address(key_of(), "n0"), len(b"begins\n\r 10%\r 20%"), done=True
    )


async def test_nothing_more_of_a_full_output_is_read() -> None:
    source = Doubtful()
    source.unsure = False
    limited = settings_with(output_bytes_max=1024)
    harness = await collecting(source, settings=limited)
    await harness.handle(started())
    source.append(key_of(), b"x" * 5000)
    await harness.settle()
    assert source.published[-1] == Stored(Address(key_of(), "n0"), 2**62, done=False)
