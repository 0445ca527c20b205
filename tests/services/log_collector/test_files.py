from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Archive, ArchiveError, Write
from services.log_collector.domain import Address
from services.log_collector.sources.files import FileSource, output_path
from services.log_collector.sources.port import Ask, Got
from tests.services.log_collector.world import key_of


@pytest.fixture(params=["memory", "files"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    return MemoryArchive() if request.param == "memory" else FileArchive(tmp_path / "a" / "logs")


async def test_an_archive_keeps_what_is_written_where_it_is_written(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    assert await archive.size(one) == 0
    assert await archive.read(one, 0, 10) == b""
    await archive.sync([one])
    await archive.write([Write(one, 0, b"hello "), Write(two, 0, b"other"), Write(one, 6, b"you")])
    await archive.write([Write(one, 0, b"hello "), Write(one, 6, b"you")])  # again
    await archive.sync([one, two])
    assert await archive.size(one) == 9
    assert await archive.sizes([one, two, one]) == [9, await archive.size(two), 9]
    assert await archive.read(one, 0, 100) == b"hello you"
    assert await archive.read(one, 6, 2) == b"yo"
    assert await archive.read(one, 99, 2) == b""
    assert await archive.read(two, 0, 100) == b"other"


async def test_an_archive_drops_the_end_or_everything(archive: Archive) -> None:
    one, two = key_of(0), key_of(1)
    await archive.write([Write(one, 0, b"0123456789"), Write(two, 0, b"x")])
    await archive.truncate(one, 20)
    assert await archive.size(one) == 10
    await archive.truncate(one, 4)
    assert await archive.read(one, 0, 100) == b"0123"
    await archive.truncate(key_of(7), 4)
    await archive.remove([one, key_of(8)])
    assert await archive.size(one) == 0
    assert await archive.size(two) == 1


async def test_kept_files_are_private_and_leave_no_folders(tmp_path: Path) -> None:
    archive = FileArchive(tmp_path / "logs")
    await archive.write([Write(key_of(0), 0, b"x"), Write(key_of(1), 0, b"x")])
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
        await FileArchive(tmp_path / "logs").write([Write(key_of(), 0, b"x")])


def address(rank: int = 0) -> Address:
    return Address(key_of(rank), "local-0")


def test_the_layout_is_the_supervisors(tmp_path: Path) -> None:
    wanted = tmp_path / "local-0" / "runs" / "t1.1" / "0" / "output.log"
    assert output_path(tmp_path, address()) == wanted


async def test_a_task_cannot_have_other_files_read(tmp_path: Path) -> None:
    secret = tmp_path / "admin-secret"
    secret.write_text("not for tasks")
    source = FileSource(tmp_path)
    path = output_path(tmp_path, address())
    path.parent.mkdir(parents=True)
    ask = [Ask(address(), 0, 100)]

    async def read() -> Got:
        (got,) = await source.read(ask, 100)
        assert got is not None
        return got

    path.symlink_to(secret)
    assert (await read()).problem
    path.unlink()
    os.link(secret, path)
    assert (await read()).problem == "it is not a plain file of its own"
    path.unlink()
    os.mkfifo(path)
    assert await read() == Got()
    path.unlink()
    folder = path.parent
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "output.log").write_text("not for tasks")
    folder.symlink_to(elsewhere)
    assert (await read()).data == b""
