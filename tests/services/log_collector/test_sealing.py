"""Output is compressed in the background, whichever process dies at whichever line."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.messages import ReadLog, RefusalCode
from libs.store.memory import Point, no_fault
from libs.store.port import StoreUnavailableError, TermOverError
from services.log_collector.archives import seekable
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.metrics import DAMAGED, UPLOAD_FAILING
from services.log_collector.archives.port import TIMES
from services.log_collector.domain import Address
from services.log_collector.sources.files import output_path
from services.log_collector.sources.memory import MemorySource
from services.log_collector.store import OutputRow, OwnerRow, RunRow, SegmentPlace, SegmentRow
from tests.kit.memory import MemoryPlatform
from tests.kit.object_storage import MinIO, bucket_in_memory
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

SEGMENT_BYTES = 4096
OUTPUT = b"".join(b"%06d: a line of some length\n" % number for number in range(500))
# A small disk's reserve is not what is tested here.
SMALL = settings_with(read_bytes_max=4096, seal_batch_bytes=8192)


def archive_of(folder: Path, bucket: Any = None) -> FileArchive:
    return FileArchive(folder, bucket, segment_bytes=SEGMENT_BYTES)


async def collected(
    folder: Path,
    source: MemorySource,
    *,
    bucket: Any = None,
    platform: MemoryPlatform | None = None,
) -> CollectorHarness:
    """A run of two ranks that has ended, recorded and not sealed."""
    harness = await collecting(
        source, archive_of(folder, bucket), SMALL, platform=platform or MemoryPlatform()
    )
    await harness.handle(started(2))
    for rank in range(2):
        source.append(key_of(rank), OUTPUT)
    await harness.handle(exited(2))
    await harness.settle()
    return harness


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "t1" / "1").iterdir())


SEALED = [f"{rank}{number}.log.zst" for rank in (0, 1) for number in ("", ".1", ".2", ".3")]
SEALED = sorted([*SEALED, "0.times.zst", "1.times.zst"])


async def check(harness: CollectorHarness, rank: int = 0) -> None:
    """Every byte is read, with its time."""
    assert await harness.archive.read(key_of(rank), 0, 2 * len(OUTPUT)) == OUTPUT
    row = next(row for row in await harness.rows(OutputRow) if row.rank == rank)
    check_times(await times_of(harness.archive, row), row.size)
    reply = await harness.ask(ReadLog(task_id="t1", attempt=1, rank=rank, offset=-5, max_bytes=5))
    assert reply.data == OUTPUT[-5:]


async def test_a_collected_run_is_compressed_and_nothing_else_is_left(tmp_path: Path) -> None:
    harness = await collected(tmp_path, MemorySource())
    assert "0.log" in files(tmp_path)
    assert await harness.step("seal") is not None
    await sealed(harness)
    assert files(tmp_path) == SEALED
    for rank in (0, 1):
        await check(harness, rank)
    rows = await harness.rows(SegmentRow)
    assert sum(row.size for row in rows if row.number != TIMES) == 2 * len(OUTPUT)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "t1" / "1").iterdir())
    assert sum(row.stored_bytes for row in rows) == on_disk
    (run,) = await harness.rows(RunRow)
    assert (run.sealed, run.stored_bytes) == (True, on_disk)
    assert await harness.rows(OwnerRow) == [OwnerRow("ann", on_disk)]
    assert await harness.step("seal") is None


async def test_output_that_is_written_is_compressed_by_whole_segments(tmp_path: Path) -> None:
    source = MemorySource()
    harness = await collecting(source, archive_of(tmp_path), SMALL)
    await harness.handle(started())
    for begin in range(0, len(OUTPUT), 1000):
        source.append(key_of(), OUTPUT[begin : begin + 1000])
        harness.clock.advance(6)
        await harness.copy_and_record()
        while await harness.step("seal") == 0.0:
            pass
        # What is not compressed is less than a segment.
        raw = [path for path in (tmp_path / "t1" / "1").iterdir() if path.name.endswith(".log")]
        assert sum(path.stat().st_size for path in raw) < SEGMENT_BYTES
        assert await stored(harness.archive) == OUTPUT[: begin + 1000]
        if begin % 5000 == 0:
            await harness.restart()
    await harness.handle(exited())
    await harness.settle()
    await sealed(harness)
    await check(harness)


async def test_the_rows_are_the_same_on_every_store(
    harness: CollectorHarness, source: MemorySource
) -> None:
    """On the memory store and on PostgreSQL."""
    await harness.handle(started(2))
    for rank in (0, 1):
        source.append(key_of(rank), OUTPUT * 5)
    await harness.settle()
    while await harness.step("seal") == 0.0:
        pass
    assert {row.number for row in await harness.rows(SegmentRow)} == {0}
    await harness.handle(exited(2))
    await harness.settle()
    await sealed(harness)
    rows = await harness.rows(SegmentRow)
    assert sorted((row.rank, row.number) for row in rows) == [
        (rank, number) for rank in (0, 1) for number in (TIMES, 0, 1)
    ]
    (run,) = await harness.rows(RunRow)
    assert await harness.rows(OwnerRow) == [OwnerRow("ann", run.stored_bytes)]
    harness.clock.advance(91 * 86_400)
    assert await harness.step("drop") is None
    for kind in (RunRow, OutputRow, SegmentRow, OwnerRow):
        assert await harness.rows(kind) == []


class CrashError(Exception):
    """The process dies here."""


@contextmanager
def dies_after(calls: int, folder: Path) -> Iterator[Callable[[], bool]]:
    """Let so many calls pass that change the disk below the folder, and no further one."""
    left = calls
    dead = False

    def at(path: object) -> None:
        nonlocal left, dead
        if isinstance(path, (str, Path)) and not Path(path).is_relative_to(folder):
            return
        if not left:
            dead = True
            raise CrashError
        left -= 1

    patch = pytest.MonkeyPatch()

    def before(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def called(target: Any, *arguments: Any, **named: Any) -> Any:
            at(target)
            done = real(target, *arguments, **named)
            at(target)
            return done

        patch.setattr(owner, name, called)

    for owner, name in [
        (os, "fsync"), (os, "pwrite"), (Path, "replace"), (Path, "unlink"), (os, "truncate"),
    ]:  # fmt: skip
        before(owner, name)
    compress = seekable.compress

    def half_written(read: Any, write: Any) -> Any:
        def written(data: bytes) -> None:
            at(0)
            write(data)
            at(0)

        return compress(read, written)

    patch.setattr(seekable, "compress", half_written)
    try:
        yield lambda: dead
    finally:
        patch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("with_bucket", [False, True])
async def test_no_death_of_the_process_loses_a_byte(tmp_path: Path, with_bucket: bool) -> None:
    """It dies before and after each call that changes the disk, and the next leader goes on."""
    calls, died = 0, True
    while died:
        folder = tmp_path / str(calls)
        bucket = bucket_in_memory() if with_bucket else None
        harness = await collected(folder, MemorySource(), bucket=bucket)
        with dies_after(calls, folder) as is_dead, suppress(CrashError):
            await sealed(harness)
        died = is_dead()
        harness._replacements["archive"] = archive_of(folder, bucket)
        harness.archive = harness._replacements["archive"]
        await harness.restart()
        for rank in (0, 1):
            await check(harness, rank)
        await sealed(harness)
        for rank in (0, 1):
            await check(harness, rank)
        if with_bucket:
            assert not (folder / "t1").exists()
            places = {row.place for row in await harness.rows(SegmentRow)}
            assert places == {SegmentPlace.BUCKET}
        else:
            assert [name for name in files(folder) if not name.endswith(".new")] == SEALED
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
@pytest.mark.parametrize("with_bucket", [False, True])
async def test_a_commit_without_an_answer_is_found_out(
    tmp_path: Path, point: Point, with_bucket: bool
) -> None:
    number, failed = 0, True
    while failed:
        folder, platform = tmp_path / str(number), MemoryPlatform()
        bucket = bucket_in_memory() if with_bucket else None
        harness = await collected(folder, MemorySource(), bucket=bucket, platform=platform)
        left, failed = number, False

        async def fault(at: Point, _schema: str) -> None:
            nonlocal left, failed
            if at is point:
                if not left:
                    failed = True
                    raise StoreUnavailableError("no answer")
                left -= 1

        platform.database.fault = fault
        with suppress(StoreUnavailableError):
            await sealed(harness)
        platform.database.fault = no_fault
        await harness.restart()
        for rank in (0, 1):
            await check(harness, rank)
        await sealed(harness)
        for rank in (0, 1):
            await check(harness, rank)
        (run,) = await harness.rows(RunRow)
        assert await harness.rows(OwnerRow) == [OwnerRow("ann", run.stored_bytes)]
        number += 1
    assert number > 5


async def test_a_former_leader_ends_its_term(tmp_path: Path) -> None:
    harness = await collected(tmp_path, MemorySource())
    await harness.archive.admit(99)
    with pytest.raises(TermOverError):
        await harness.step("seal")
    assert await harness.rows(SegmentRow) == []
    assert not any(name.endswith(".zst") for name in files(tmp_path))


async def test_output_of_a_version_without_segments_is_read_and_sealed(tmp_path: Path) -> None:
    source = MemorySource()
    harness = await collecting(source, FileArchive(tmp_path), SMALL)  # one file, however long
    await harness.handle(started(2))
    for rank in range(2):
        source.append(key_of(rank), OUTPUT[:9000])
    await harness.settle()
    assert (tmp_path / "t1" / "1" / "0.log").stat().st_size == 9000
    # The next version, while the run goes on.
    harness._replacements["archive"] = harness.archive = archive_of(tmp_path)
    await harness.restart()
    assert await stored(harness.archive) == OUTPUT[:9000]
    for rank in range(2):
        source.append(key_of(rank), OUTPUT[9000:])
    await harness.settle()
    assert await stored(harness.archive) == OUTPUT
    while await harness.step("seal") == 0.0:
        pass
    assert await stored(harness.archive) == OUTPUT
    await harness.handle(exited(2))
    await harness.settle()
    await sealed(harness)
    assert files(tmp_path) == SEALED
    for rank in (0, 1):
        await check(harness, rank)


async def test_damage_is_a_marked_gap_and_an_alarm(tmp_path: Path) -> None:
    harness = await collected(tmp_path, MemorySource())
    await sealed(harness)
    before = DAMAGED._value.get()
    path = tmp_path / "t1" / "1" / "0.1.log.zst"
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    reply = await harness.ask(ReadLog(task_id="t1", attempt=1))
    assert reply.refusal is None
    gap = seekable.filler(SEGMENT_BYTES)
    assert reply.data == OUTPUT[:SEGMENT_BYTES] + gap + OUTPUT[2 * SEGMENT_BYTES :]
    assert DAMAGED._value.get() == before + SEGMENT_BYTES
    path.unlink()
    reply = await harness.ask(ReadLog(task_id="t1", attempt=1))
    assert reply.data == OUTPUT[:SEGMENT_BYTES] + gap + OUTPUT[2 * SEGMENT_BYTES :]
    await check(harness, 1)


async def test_a_shorter_file_is_sealed_with_a_marked_gap(tmp_path: Path) -> None:
    harness = await collected(tmp_path, MemorySource())
    os.truncate(tmp_path / "t1" / "1" / "0.1.log", 1000)
    await sealed(harness)
    found = await stored(harness.archive)
    end = SEGMENT_BYTES + 1000
    assert len(found) == len(OUTPUT)
    assert found[:end] == OUTPUT[:end]
    assert found[2 * SEGMENT_BYTES :] == OUTPUT[2 * SEGMENT_BYTES :]
    assert found[end : 2 * SEGMENT_BYTES] == seekable.filler(2 * SEGMENT_BYTES - end)


async def test_a_run_whose_files_are_gone_does_not_hold_up_others(tmp_path: Path) -> None:
    source = MemorySource()
    harness = await collected(tmp_path, source)
    for path in (tmp_path / "t1" / "1").iterdir():
        path.unlink()
    await harness.handle(started(task="t2"))
    source.append(key_of(task="t2"), OUTPUT)
    await harness.handle(exited(task="t2", seconds=99))
    await harness.settle()
    while await harness.step("seal") is not None:
        pass
    rows = {row.task_id: row.sealed for row in await harness.rows(RunRow)}
    assert rows == {"t1": False, "t2": True}
    assert [row for row in await harness.rows(SegmentRow) if row.task_id == "t1"] == []


async def test_an_open_output_that_is_gone_does_not_hold_up_others(tmp_path: Path) -> None:
    source = MemorySource()
    harness = await collecting(source, archive_of(tmp_path), SMALL)
    for task in ("t1", "t2"):
        await harness.handle(started(task=task))
        source.append(key_of(task=task), OUTPUT)
    await harness.settle()
    (tmp_path / "t1" / "1" / "0.log").unlink()
    while await harness.step("seal") == 0.0:
        pass
    rows = await harness.rows(SegmentRow)
    assert {row.number for row in rows if row.task_id == "t2"} == {0, 1, 2}
    assert 0 not in {row.number for row in rows if row.task_id == "t1"}
    assert (await harness.ask(ReadLog(task_id="t2", attempt=1))).data == OUTPUT


async def test_the_oldest_runs_of_an_owner_with_too_many_bytes_are_dropped(tmp_path: Path) -> None:
    source = MemorySource()
    settings = settings_with(bytes_per_user_max=3000)
    harness = await collecting(source, archive_of(tmp_path), settings)
    noise = random.Random(1)
    for number, owner in enumerate(["ann", "bob", "ann", "ann", ""]):
        task = f"t{number}"
        await harness.handle(replaced_owner(started(task=task), owner))
        source.append(key_of(task=task), b"\xff" + noise.randbytes(1199))
        await harness.handle(replaced_owner(exited(task=task, seconds=number), owner))
    await harness.settle()
    await sealed(harness)
    while await harness.step("drop") is not None:
        pass
    assert sorted(row.task_id for row in await harness.rows(RunRow)) == ["t1", "t2", "t3", "t4"]
    assert {row.task_id for row in await harness.rows(SegmentRow)} == {"t1", "t2", "t3", "t4"}
    assert not (tmp_path / "t0").exists()
    rows = await harness.rows(RunRow)
    for owner in ("ann", "bob", ""):
        mine = sum(row.stored_bytes for row in rows if row.owner == owner)
        assert OwnerRow(owner, mine) in await harness.rows(OwnerRow)


async def test_the_newest_run_of_an_owner_stays_whatever_it_takes(tmp_path: Path) -> None:
    source = MemorySource()
    settings = settings_with(bytes_per_user_max=1024)
    harness = await collecting(source, archive_of(tmp_path), settings)
    for number in range(2):
        task = f"t{number}"
        await harness.handle(started(task=task))
        source.append(key_of(task=task), b"\xff" + random.Random(number).randbytes(5000))
        await harness.handle(exited(task=task, seconds=number))
    await harness.settle()
    while await harness.step("drop") is not None:
        pass
    assert [row.task_id for row in await harness.rows(RunRow)] == ["t1"]


def replaced_owner(event: Any, owner: str) -> Any:
    return event.model_copy(update={"owner": owner})


def sealer_of(harness: CollectorHarness) -> Any:
    return next(loop for loop in harness.service.loops if loop.name == "seal").step.__self__


@pytest.mark.objectstore
async def test_an_object_storage_that_is_away_costs_only_disk(tmp_path: Path, minio: MinIO) -> None:
    source = MemorySource()
    limits = {"bucket_read_seconds": 1.0, "bucket_write_seconds": 2.0}
    harness = await collected(tmp_path, source, bucket=minio.bucket(tmp_path, **limits))
    await sealed(harness)
    assert not (tmp_path / "t1").exists()
    for rank in (0, 1):
        await check(harness, rank)
    # A second run, whose end comes while the storage is away; a third goes on.
    for task in ("t2", "t3"):
        await harness.handle(started(task=task))
        source.append(key_of(task=task), OUTPUT)
    await harness.handle(exited(task="t2", seconds=5))
    await harness.settle()
    live = OUTPUT
    for stop, back in ((minio.kill, minio.start), (minio.freeze, minio.thaw)):
        # A new process, which remembers nothing of the first run.
        harness.archive = archive_of(tmp_path, minio.bucket(tmp_path, **limits))
        harness._replacements["archive"] = harness.archive
        stop()
        try:
            await harness.restart()
            while not UPLOAD_FAILING._value.get():
                await harness.step("seal")
            pause: float | None = 0.0
            while pause is not None and pause < 1:
                pause = await harness.step("seal")
            assert pause is not None
            reply = await harness.ask(ReadLog(task_id="t1", attempt=1))
            assert reply.refusal is not None
            assert reply.refusal.code is RefusalCode.UNAVAILABLE
            source.append(key_of(task="t3"), b"goes on\n")
            live += b"goes on\n"
            await harness.copy_and_record()
            for task, wanted in (("t2", OUTPUT), ("t3", live)):
                assert (await harness.ask(ReadLog(task_id=task, attempt=1))).data == wanted
            assert (tmp_path / "t2" / "1" / "0.log.zst").exists()
        finally:
            back()
        UPLOAD_FAILING.set(0)
    sealer_of(harness).upload_at = 0.0
    await sealed(harness)
    assert not (tmp_path / "t2").exists()
    for task, wanted in (("t1", OUTPUT), ("t2", OUTPUT), ("t3", live)):
        assert (await harness.ask(ReadLog(task_id=task, attempt=1))).data == wanted


@pytest.mark.objectstore
async def test_no_byte_is_lost_when_the_object_storage_is_killed(
    tmp_path: Path, minio: MinIO
) -> None:
    rng = random.Random(3)
    source = MemorySource()
    limits = {"bucket_read_seconds": 2.0, "bucket_write_seconds": 2.0, "seal_retry_seconds": 0.1}
    harness = await collected(tmp_path, source, bucket=minio.bucket(tmp_path, **limits))
    for number in range(2, 8):
        task = f"t{number}"
        await harness.handle(started(task=task))
        source.append(key_of(task=task), OUTPUT)
        await harness.handle(exited(task=task, seconds=number))
        await harness.settle()
        sealing = asyncio.ensure_future(sealed(harness))
        await asyncio.sleep(rng.random() * 0.05)
        minio.kill()
        minio.start()
        await sealing
        sealer_of(harness).upload_at = 0.0
    while await harness.step("seal") is not None:
        sealer_of(harness).upload_at = 0.0
    assert {row.place for row in await harness.rows(SegmentRow)} == {SegmentPlace.BUCKET}
    for number in range(1, 8):
        assert (await harness.ask(ReadLog(task_id=f"t{number}", attempt=1))).data == OUTPUT


# Reads what another process writes at 100 MB/s, and reports its own memory.
COLLECTOR = """
import asyncio, json, resource, sys
from pathlib import Path
from services.log_collector.archives.files import FileArchive
from services.log_collector.sources.files import FileSource
from tests.services.log_collector.collector_harness import (
    collecting, exited, sealed, settings_with, started,
)

async def main(folder: Path) -> None:
    settings = settings_with(runs_dir=folder / "runs", logs_dir=folder / "logs")
    archive = FileArchive(folder / "logs", segment_bytes=8 << 20)
    harness = await collecting(FileSource(folder / "runs"), archive, settings)
    harness.service.ports.bus.send_telemetry = nothing
    await harness.handle(started())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raw = 0
    print("ready", flush=True)
    while not (folder / "ended").exists():
        harness.clock.advance(5)
        if await harness.copy_and_record() != 0.0:
            await asyncio.sleep(0.01)
        while await harness.step("seal") == 0.0:
            pass
        files = (folder / "logs" / "t1" / "1").glob("*.log")
        raw = max(raw, sum(path.stat().st_size for path in files))
    await harness.handle(exited())
    await harness.settle()
    await sealed(harness)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"grown": (after - before) * 1024, "raw": raw}))

async def nothing(_envelope: object) -> None:
    pass

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
async def test_a_firehose_is_survived_with_bounded_memory_and_disk(tmp_path: Path) -> None:
    """400 MB as fast as a rank writes: lines, one without an end of 20 MB, and bytes of no text."""
    path = output_path(tmp_path / "runs", Address(key_of(), "n0"))
    path.parent.mkdir(parents=True)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COLLECTOR, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    lines = OUTPUT * 60
    parts = [lines] * 150 + [b"x" * 1_000_000] * 20 + [b"\n"]
    parts += [lines] * 100 + [random.Random(1).randbytes(1_000_000)] * 20 + [lines] * 100
    began, size = time.monotonic(), 0
    wanted = hashlib.sha256()
    with path.open("ab") as file:
        for part in parts:
            file.write(part)
            wanted.update(part)
            size += len(part)
            await asyncio.sleep(max(0.0, began + size / 100e6 - time.monotonic()))
    (tmp_path / "ended").touch()
    found = json.loads((await child.communicate())[0])
    assert child.returncode == 0
    assert found["grown"] < 200_000_000
    # What is not compressed yet: less than a segment, and what comes while one is compressed.
    assert found["raw"] < 3 * (8 << 20)
    archive = FileArchive(tmp_path / "logs", segment_bytes=8 << 20)
    kept, at = hashlib.sha256(), 0
    while data := await archive.read(key_of(), at, 1 << 20):
        kept.update(data)
        at += len(data)
    assert (at, kept.hexdigest()) == (size, wanted.hexdigest())
    assert not list((tmp_path / "logs" / "t1" / "1").glob("*.log"))


async def test_bars_and_bytes_keep_their_policy_through_sealing(tmp_path: Path) -> None:
    """A progress bar becomes its last state, a line that is too long stays as it is, and of bytes
    that are no text none is left out, wherever segments are cut."""
    source = MemorySource()
    harness = await collecting(source, archive_of(tmp_path), SMALL)
    await harness.handle(started(3))
    bar = b"".join(b"\r%3d%%|%s" % (number % 100, b"#" * 50) for number in range(400))
    long_line = b"y" * 70_000 + b"\r" + b"z" * 70_000
    binary = b"\0\r\xff" * 4000
    for begin in range(0, 150_000, 3000):
        for rank, output in enumerate((OUTPUT + bar + b"\nend\n" + OUTPUT, long_line, binary)):
            source.append(key_of(rank), output[begin : begin + 3000])
        harness.clock.advance(0.01)
        await harness.copy_and_record()
        while await harness.step("seal") == 0.0:
            pass
    await harness.handle(exited(3))
    await harness.settle()
    await sealed(harness)
    shown = OUTPUT + b"\r" + bar.rpartition(b"\r")[2] + b"\nend\n" + OUTPUT
    found = [await harness.archive.read(key_of(rank), 0, 10**6) for rank in range(3)]
    assert found[0] == shown
    # A terminal shows the end of it, and what was longer than is held back is kept.
    assert found[1].endswith(b"z" * 70_000)
    assert found[2] == binary
    for row in await harness.rows(OutputRow):
        check_times(await times_of(harness.archive, row), row.size)
