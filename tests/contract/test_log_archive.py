"""What every archive of kept output promises: in memory, in files, and with a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import (
    TIMES,
    Archive,
    NotWriterError,
    Segment,
    Write,
)
from services.log_collector.domain import OutputKey, Timestamp
from tests.kit.clock import at
from tests.kit.object_storage import MinIO, bucket_in_memory
from tests.services.log_collector.collector_harness import key_of

SEGMENT_BYTES = 4096


@pytest_asyncio.fixture(
    params=["memory", "files", "bucket", pytest.param("minio", marks=pytest.mark.objectstore)]
)
async def archive(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Archive]:
    folder = tmp_path / "a" / "logs"
    if request.param == "memory":
        yield MemoryArchive(SEGMENT_BYTES)
    elif request.param == "files":
        yield FileArchive(folder, segment_bytes=SEGMENT_BYTES)
    elif request.param == "bucket":
        yield FileArchive(folder, bucket_in_memory(), segment_bytes=SEGMENT_BYTES)
    else:
        minio: MinIO = request.getfixturevalue("minio")
        yield FileArchive(folder, minio.bucket(tmp_path), segment_bytes=SEGMENT_BYTES)


async def put_away(archive: Archive, segments: Sequence[Segment], epoch: int = 0) -> None:
    """Seal segments, all of complete outputs, and leave nothing else of them here."""
    sizes = await archive.seal(segments, epoch=epoch)
    assert all(size is not None for size in sizes)
    ends: dict[OutputKey, int] = {}
    for each in segments:
        end = max(0, each.number) * archive.segment_bytes + each.size
        ends[each.key] = max(ends.get(each.key, 0), end if each.number != TIMES else 0)
    await archive.release(ends, complete=True, epoch=epoch)
    if archive.has_bucket:
        await archive.upload(segments, epoch=epoch)
        await archive.drop_uploaded(segments, epoch=epoch)


async def test_an_archive_keeps_what_is_written_where_it_is_written(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    assert await archive.size(one) == 0
    assert await archive.read(one, 0, 10) == b""
    await archive.sync([one])
    await archive.write(
        [Write(one, 0, b"hello "), Write(two, 0, b"other"), Write(one, 6, b"you")], epoch=0
    )
    await archive.write([Write(one, 0, b"hello "), Write(one, 6, b"you")], epoch=0)  # again
    await archive.sync([one, two])
    assert await archive.size(one) == 9
    assert await archive.sizes([one, two, one]) == [9, await archive.size(two), 9]
    assert await archive.read(one, 0, 100) == b"hello you"
    assert await archive.read(one, 6, 2) == b"yo"
    assert await archive.read(one, 99, 2) == b""
    assert await archive.read(two, 0, 100) == b"other"


async def test_one_leader_writes_to_an_archive(archive: Archive) -> None:
    one = key_of(0)
    await archive.write([Write(one, 0, b"by nobody")], epoch=0)
    for epoch, others in ((7, (0, 6, 8)), (8, (0, 7)), (3, (8, 7))):
        await archive.admit(epoch)
        for other in others:
            with pytest.raises(NotWriterError, match=f"epoch {epoch} writes here, .* {other}$"):
                await archive.write([Write(one, 0, b"no")], epoch=other)
            with pytest.raises(NotWriterError):
                await archive.truncate(one, 0, epoch=other)
        assert await archive.read(one, 0, 100) == b"by nobody"
        await archive.write([Write(one, 0, b"by nobody")], epoch=epoch)
        await archive.truncate(one, 9, epoch=epoch)


async def test_an_archive_drops_the_end_or_everything(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    await archive.write([Write(one, 0, b"0123456789"), Write(two, 0, b"x")], epoch=0)
    await archive.truncate(one, 20, epoch=0)
    assert await archive.size(one) == 10
    await archive.truncate(one, 4, epoch=0)
    assert await archive.read(one, 0, 100) == b"0123"
    await archive.truncate(key_of(7), 4, epoch=0)
    await archive.remove([one, key_of(8)])
    assert await archive.size(one) == 0
    assert await archive.size(two) == 1


def stamped(key: OutputKey, number: int, offset: int, data: bytes, seconds: float) -> Write:
    return Write(key, offset, data, (Timestamp(offset, at(seconds)),), number)


async def test_an_archive_keeps_when_bytes_were_written(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    assert await archive.timestamps(one, 0, 10) == []
    assert await archive.partition(one, 0, lambda _: True) == 0
    writes = [stamped(one, number, 10 * number, b"123456789\n", number) for number in range(5)]
    await archive.write(writes, epoch=0)
    await archive.write([Write(two, 0, b"no times")], epoch=0)
    await archive.write(writes[3:], epoch=0)  # again
    await archive.sync([one, two])
    stored = [Timestamp(10 * number, at(number)) for number in range(5)]
    assert await archive.timestamps(one, 0, 10) == stored
    assert await archive.timestamps(one, 3, 1) == stored[3:4]
    assert await archive.timestamps(one, 5, 1) == await archive.timestamps(two, 0, 1) == []
    for offset, before in [(-1, 0), (0, 1), (9, 1), (10, 2), (49, 5)]:
        assert await archive.partition(one, 5, lambda each, o=offset: each.offset <= o) == before
    # Only those count that the caller knows to be kept.
    assert await archive.partition(one, 3, lambda each: each.offset <= 49) == 3
    assert await archive.partition(one, 99, lambda each: each.offset <= 49) == 5


async def test_an_archive_drops_times_with_their_bytes(archive: Archive) -> None:
    one = key_of(0)
    await archive.write(
        [stamped(one, number, number, b"x", number) for number in range(5)], epoch=0
    )
    await archive.truncate(one, 3, 3, epoch=0)
    assert await archive.size(one) == 3
    assert await archive.timestamps(one, 0, 9) == [Timestamp(n, at(n)) for n in range(3)]
    await archive.truncate(one, 9, 9, epoch=0)
    assert len(await archive.timestamps(one, 0, 9)) == 3
    await archive.remove([one])
    assert await archive.timestamps(one, 0, 9) == []


OUTPUT = b"".join(b"%06d: a line of some length\n" % number for number in range(600))


async def kept(archive: Archive, key: OutputKey) -> list[Segment]:
    """Write ``OUTPUT`` with a time for each thousand bytes; returns its segments."""
    number = 0
    for offset in range(0, len(OUTPUT), 1000):
        piece = OUTPUT[offset : offset + 1000]
        await archive.write([stamped(key, number, offset, piece, number)], epoch=0)
        number += 1
    await archive.sync([key])
    segments = [
        Segment(key, begin // SEGMENT_BYTES, min(SEGMENT_BYTES, len(OUTPUT) - begin))
        for begin in range(0, len(OUTPUT), SEGMENT_BYTES)
    ]
    return [*segments, Segment(key, TIMES, 16 * number)]


async def check(archive: Archive, key: OutputKey) -> None:
    """Every range is read as it was written."""
    size, step = len(OUTPUT), SEGMENT_BYTES
    for offset, count in [
        (0, size), (0, 1), (step - 1, 2), (step, step), (step + 7, 2 * step), (size - 1, 9),
        (size, 9),
    ]:  # fmt: skip
        assert await archive.read(key, offset, count) == OUTPUT[offset : offset + count]
    count = -(-size // 1000)
    stamps = [Timestamp(1000 * number, at(number)) for number in range(count)]
    assert await archive.timestamps(key, 0, 99) == stamps
    assert await archive.timestamps(key, 3, 2) == stamps[3:5]
    for offset in (0, 999, 1000, 12_345, size):
        before = sum(each.offset <= offset for each in stamps)
        found = await archive.partition(key, count, lambda each, o=offset: each.offset <= o)
        assert found == before


async def test_what_is_sealed_is_read_as_it_was_written(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    segments = [*await kept(archive, one), *await kept(archive, two)]
    await check(archive, one)
    sizes = await archive.seal(segments, epoch=0)
    assert await archive.seal(segments, epoch=0) == sizes  # again
    await check(archive, one)
    await put_away(archive, segments)
    await put_away_again(archive, segments)
    await check(archive, one)
    await check(archive, two)
    await archive.remove([one])
    assert await archive.read(one, 0, 10) == b""
    assert await archive.timestamps(one, 0, 1) == []
    await check(archive, two)


async def put_away_again(archive: Archive, segments: Sequence[Segment]) -> None:
    """What a process repeats that died after each step."""
    ends = {each.key: len(OUTPUT) for each in segments}
    await archive.release(ends, complete=True, epoch=0)
    if archive.has_bucket:
        await archive.upload(segments, epoch=0)
        await archive.drop_uploaded(segments, epoch=0)


async def test_an_output_is_sealed_while_it_is_written(archive: Archive) -> None:
    one = key_of(0)
    written = 0
    for number in range(4):
        end = (number + 1) * SEGMENT_BYTES + 100
        await archive.write([Write(one, written, OUTPUT[written:end])], epoch=0)
        await archive.sync([one])
        written = end
        segment = Segment(one, number, SEGMENT_BYTES)
        await archive.seal([segment], epoch=0)
        await archive.release({one: (number + 1) * SEGMENT_BYTES}, complete=False, epoch=0)
        if archive.has_bucket:
            await archive.upload([segment], epoch=0)
            await archive.drop_uploaded([segment], epoch=0)
        assert await archive.size(one) == written
        assert await archive.read(one, 0, 10**6) == OUTPUT[:written]
    # A new leader drops what is not recorded; what is sealed stays.
    await archive.truncate(one, 4 * SEGMENT_BYTES + 50, epoch=0)
    assert await archive.read(one, 0, 10**6) == OUTPUT[: 4 * SEGMENT_BYTES + 50]
    await archive.write([Write(one, 4 * SEGMENT_BYTES + 50, b"more")], epoch=0)
    assert await archive.read(one, 4 * SEGMENT_BYTES + 48, 99) == (
        OUTPUT[4 * SEGMENT_BYTES + 48 : 4 * SEGMENT_BYTES + 50] + b"more"
    )


async def test_a_former_leader_neither_seals_nor_releases(archive: Archive) -> None:
    one = key_of(0)
    segments = await kept(archive, one)
    await archive.admit(8)
    with pytest.raises(NotWriterError):
        await archive.seal(segments, epoch=7)
    await archive.seal(segments, epoch=8)
    with pytest.raises(NotWriterError):
        await archive.release({one: len(OUTPUT)}, complete=True, epoch=7)
    if archive.has_bucket:
        for step in (archive.upload, archive.drop_uploaded):
            with pytest.raises(NotWriterError):
                await step(segments, epoch=7)
    await check(archive, one)
