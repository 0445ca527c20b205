"""Where a restore may go, and what a backup needs, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from shiftwork.cli.failures import Failure

from services.allinone.backup import create, restore
from services.allinone.backup.progress import CancelledWorkError, Progress
from services.allinone.data_folder import DataFolder
from services.log_collector.archives.files import SEGMENT_BYTES, FileArchive
from services.log_collector.archives.port import TIMES, Segment, Write
from services.log_collector.domain import OutputKey, Timestamp


def test_a_new_or_empty_folder_can_be_restored_to(tmp_path: Path) -> None:
    restore.check_target(DataFolder(tmp_path / "new"))
    (tmp_path / "empty").mkdir(mode=0o700)
    restore.check_target(DataFolder(tmp_path / "empty"))
    assert os.listdir(tmp_path) == ["empty"]  # noqa: PTH208 - names only


def test_a_folder_that_has_something_is_refused(tmp_path: Path) -> None:
    for held in ("up.lock", "lost+found", "train.py"):
        data = tmp_path / held
        data.mkdir(mode=0o700)
        (data / held).touch()
        with pytest.raises(Failure) as refused:
            restore.check_target(DataFolder(data))
        assert held in refused.value.what
        assert refused.value.fix


def test_a_file_a_link_and_a_mount_point_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(Failure, match="is a file"):
        restore.check_target(DataFolder(tmp_path / "file"))
    with pytest.raises(Failure, match="symbolic link"):
        restore.check_target(DataFolder(tmp_path / "link"))
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "folder")
    with pytest.raises(Failure, match="mounted"):
        restore.check_target(DataFolder(tmp_path / "folder"))


def test_a_folder_without_a_platform_has_no_backup(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no platform"):
        create.check_folder(DataFolder(tmp_path))
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - names only


def test_a_backup_that_fails_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "backup"

    def half() -> None:
        with create.complete_or_nothing(file) as partial:
            partial.write(b"half")
            partial.flush()
            assert [path.name for path in tmp_path.iterdir()] == [".backup.partial"]
            raise OSError(28, "No space left on device")

    with pytest.raises(Failure, match="No space left on device"):
        half()
    assert list(tmp_path.iterdir()) == []
    with create.complete_or_nothing(file) as partial:
        partial.write(b"whole")
    assert file.read_bytes() == b"whole"
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Failure, match="exists"), create.complete_or_nothing(file):
        pass
    assert file.read_bytes() == b"whole"


def test_two_backups_to_one_name_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with create.complete_or_nothing(file) as partial:
        partial.write(b"first")
        with pytest.raises(Failure, match="another backup"), create.complete_or_nothing(file):
            pass
    assert file.read_bytes() == b"first"


def test_an_output_that_is_shorter_than_recorded_is_an_error(tmp_path: Path) -> None:
    archive, key = FileArchive(tmp_path), OutputKey("t1", 1, 0)
    archive.path(key).parent.mkdir(parents=True)
    archive.path(key).write_bytes(b"abc")
    assert b"".join(create.first_bytes(archive, create.Output(key, 0, 2))) == b"ab"
    with pytest.raises(Failure, match="1 byte shorter"):
        list(create.first_bytes(archive, create.Output(key, 0, 4)))


def test_the_list_of_outputs_gives_files_and_the_sizes_that_count(tmp_path: Path) -> None:
    listed = tmp_path / "listed"
    listed.write_text(f"t1,2,0,100,3\nt2,1,7,0,\nt3,1,0,{SEGMENT_BYTES + 1},1\n")
    found = {str(output.path): output.size for output in create.kept_outputs(listed)}
    expected = {"t1/2/0.log": 100, "t1/2/0.times": 48, "t2/1/7.log": 0, "t2/1/7.times": 0}
    expected |= {"t3/1/0.log": SEGMENT_BYTES, "t3/1/0.1.log": 1, "t3/1/0.times": 16}
    assert found == expected


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (None, None, None),
        # Opened again since the snapshot, in which they are drained.
        (None, b'["n0"]', b'["n0"]'),
        (b'["n0", "n1"]', None, b'["n0", "n1"]'),
        (b'["n0", "n1"]', b'["n0"]', b'["n0", "n1"]'),
    ],
)
def test_nodes_that_were_drained_at_the_snapshot_are_opened_after_a_restore(
    tmp_path: Path, now: bytes | None, before: bytes | None, expected: bytes | None
) -> None:
    if now is not None:
        (tmp_path / "drained.json").write_bytes(now)
    (tmp_path / "admin-token").write_bytes(b"sat_x")
    found = dict(create.folder_parts(DataFolder(tmp_path), before))
    assert found.pop("folder/admin-token") == b"sat_x"
    assert found == ({} if expected is None else {"folder/drained.json": expected})


def test_work_ends_at_its_next_chunk_after_a_cancellation() -> None:
    progress = Progress(lambda _: None)
    chunks = progress.of([b"1", b"2"])
    assert next(chunks) == b"1"
    progress.cancelled.set()
    with pytest.raises(CancelledWorkError):
        next(chunks)


async def test_a_backup_has_sealed_output_as_it_was_at_the_snapshot(tmp_path: Path) -> None:
    """Two outputs were compressed since the snapshot, one of which had grown before."""
    data_folder, listed = DataFolder(tmp_path), tmp_path / "listed"
    archive = FileArchive(data_folder.logs)
    keys = [OutputKey("t1", 1, rank) for rank in range(4)]
    stamp = Timestamp(0, datetime(2026, 1, 1, tzinfo=UTC))
    await archive.write([Write(key, 0, b"0123456789", [stamp]) for key in keys[:3]], epoch=0)
    sealed = [part for key in keys[:2] for part in (Segment(key, 0, 10), Segment(key, TIMES, 16))]
    await archive.seal(sealed, epoch=0)
    await archive.release(dict.fromkeys(keys[:2], 10), complete=True, epoch=0)
    listed.write_text("t1,1,0,10,1\nt1,1,1,4,1\nt1,1,2,10,1\nt1,1,3,7,1\n")
    parts: dict[str, bytes] = {}

    class Writer:
        def add(self, name: str, chunks: Iterable[bytes]) -> None:
            parts[name] = b"".join(chunks)

    progress = Progress(lambda _: None)
    assert create._copy(Writer(), data_folder, listed, progress) == 1
    zst = archive.sealed_path(keys[0], 0).read_bytes()
    assert {name: data for name, data in parts.items() if "times" not in name} == {
        "output/t1/1/0.log.zst": zst,
        "output/t1/1/1.log": b"0123",
        "output/t1/1/2.log": b"0123456789",
    }
    restored = FileArchive(tmp_path / "restored")
    for name, data in parts.items():
        path = tmp_path / "restored" / name.removeprefix("output/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert [await restored.read(key, 0, 99) for key in keys[:3]] == [
        b"0123456789", b"0123", b"0123456789",
    ]  # fmt: skip
    assert await restored.timestamps(keys[0], 0, 9) == await restored.timestamps(keys[2], 0, 9)
