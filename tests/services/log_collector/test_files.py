from __future__ import annotations

import os
import stat
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest

from services.log_collector.archives import files
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.domain import (
    EPOCH,
    Address,
    OutputKey,
    Timestamp,
    datetime_of,
    unpacked,
)
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.port import ReadRequest, ReadResult
from tests.kit.clock import at
from tests.services.log_collector.collector_harness import key_of


def stamped(key: OutputKey, number: int, offset: int, data: bytes, seconds: float) -> Write:
    return Write(key, offset, data, (Timestamp(offset, at(seconds)),), number)


async def test_times_are_private_and_leave_no_files(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "logs")
    await archive.write([stamped(key_of(0), 0, 0, b"x", 0.25)], epoch=0)
    path = tmp_path / "logs" / "t1" / "1" / "0.times"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Two numbers of 8 bytes, the lowest byte first: an offset, and microseconds since 1970.
    micros = int(at(0.25).timestamp() * 1_000_000)
    assert path.read_bytes() == (0).to_bytes(8, "little") + micros.to_bytes(8, "little")
    await archive.remove([key_of(0)])
    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_crash_forgets_what_was_not_synced() -> None:
    archive, one = MemoryArchive(), key_of(0)
    await archive.write([stamped(one, 0, 0, b"synced", 0)], epoch=0)
    await archive.sync([one])
    await archive.write([stamped(one, 1, 6, b"not", 1)], epoch=0)
    archive.crash()
    assert await archive.timestamps(one, 0, 9) == [Timestamp(0, at(0))]


async def test_kept_files_are_private_and_leave_no_folders(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "logs")
    await archive.write([Write(key_of(0), 0, b"x"), Write(key_of(1), 0, b"x")], epoch=0)
    path = archive.path(key_of(0))
    assert path == tmp_path / "logs" / "t1" / "1" / "0.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await archive.remove([key_of(0)])
    assert path.parent.exists()
    await archive.remove([key_of(1)])
    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_refusing_disk_is_an_archive_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(ArchiveError):
        await FileArchive(tmp_path / "logs").write([Write(key_of(), 0, b"x")], epoch=0)


async def test_a_first_sync_lists_a_folder_once_for_all_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, keys = FileArchive(tmp_path / "logs"), [key_of(rank) for rank in range(20)]
    await archive.write([stamped(key, 0, 0, b"x", 0) for key in keys], epoch=0)
    listed, scandir = list[object](), os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    await archive.sync(keys)
    assert len(listed) == 1
    await archive.write([stamped(key, 1, 1, b"y", 1) for key in keys], epoch=0)
    await archive.sync(keys)
    assert len(listed) == 1


async def test_the_space_that_is_left_is_checked_once_for_each_mebibyte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    def spare_problem(place: int | str) -> str:
        nonlocal checks
        checks += 1
        return "" if checks <= 3 else "no space left"

    monkeypatch.setattr(files, "spare_problem", spare_problem)
    archive = FileArchive(tmp_path / "logs")
    await archive.write([Write(key_of(rank), 0, b"a line\n") for rank in range(50)], epoch=0)
    assert checks == 1
    data = bytes(files.SPACE_CHECK_BYTES)
    with pytest.raises(ArchiveError, match="no space left"):
        await archive.write([Write(key_of(rank), 7, data) for rank in range(50)], epoch=0)
    assert sum(await archive.sizes([key_of(rank) for rank in range(50)])) < 4 * len(data)


async def test_the_space_that_is_left_is_checked_again_within_a_batch_of_small_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    def spare_problem(place: int | str) -> str:
        nonlocal checks
        checks += 1
        return "" if checks <= 2 else "no space left"

    monkeypatch.setattr(files, "spare_problem", spare_problem)
    archive, data = FileArchive(tmp_path / "logs"), bytes(files.SPACE_CHECK_BYTES // 8)
    with pytest.raises(ArchiveError, match="no space left"):
        await archive.write([Write(key_of(rank), 0, data) for rank in range(50)], epoch=0)
    assert sum(await archive.sizes([key_of(rank) for rank in range(50)])) == 16 * len(data)


async def test_a_read_takes_memory_for_what_is_there(tmp_path: Path) -> None:
    path = output_path(tmp_path, address())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a line\n")
    tracemalloc.start()
    try:
        (result,) = await FileSource(tmp_path).read([ReadRequest(address(), 0, 1 << 26)], 1 << 26)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result is not None
    assert result.data == b"a line\n"
    assert peak < 1 << 20


def address(rank: int = 0) -> Address:
    return Address(key_of(rank), "local-0")


@pytest.mark.parametrize(
    ("changed_at", "expected_at"),
    [(at(5).timestamp(), at(5)), (-5, EPOCH), (2**33, datetime_of(2**33 * 1_000_000))],
)
async def test_files_have_the_time_of_their_last_write(
    tmp_path: Path, changed_at: float, expected_at: datetime
) -> None:
    """A task may set the time of its own file: nothing breaks."""
    path = output_path(tmp_path, address())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a line\n")
    os.utime(path, (changed_at, changed_at))
    (result,) = await FileSource(tmp_path).read([ReadRequest(address(), 0, 100)], 100)
    assert result is not None
    assert result.timestamps == (Timestamp(0, expected_at),)


def test_an_impossible_time_becomes_the_nearest_possible_one() -> None:
    assert datetime_of(2**63 - 1).year == 9999
    assert datetime_of(-(2**63)) == EPOCH
    assert unpacked(b"\xff" * 7 + b"\x7f" + b"\xff" * 7 + b"\x7f" + b"half")[0].at.year == 9999


def test_the_layout_is_the_supervisors(tmp_path: Path) -> None:
    wanted = tmp_path / "local-0" / "runs" / "t1.1" / "0" / "output.log"
    assert output_path(tmp_path, address()) == wanted


async def test_a_task_cannot_make_the_collector_read_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "admin-secret"
    secret.write_text("not for tasks")
    source = FileSource(tmp_path)
    path = output_path(tmp_path, address())
    path.parent.mkdir(parents=True)
    request = [ReadRequest(address(), 0, 100)]

    async def read() -> ReadResult:
        (result,) = await source.read(request, 100)
        assert result is not None
        return result

    path.symlink_to(secret)
    assert (await read()).problem
    path.unlink()
    os.link(secret, path)
    assert (await read()).problem == "it is not a plain file of its own"
    path.unlink()
    os.mkfifo(path)
    assert await read() == ReadResult()
    path.unlink()
    folder = path.parent
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "output.log").write_text("not for tasks")
    folder.symlink_to(elsewhere)
    assert (await read()).data == b""
