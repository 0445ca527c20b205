"""The file of a backup: what is written is read again, and any change is found."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.allinone.backup.backup_file import (
    CHUNK_BYTES,
    DATABASE,
    FORMAT,
    BackupWriter,
    DamagedError,
    Manifest,
    NewerBackupError,
    NotABackupError,
    decode_manifest,
    is_known,
    newer_schemas,
    part_header,
    read_manifest,
    read_parts,
    verify,
)

MANIFEST = Manifest(
    created_at=datetime(2026, 11, 23, 20, 0, tzinfo=UTC),
    revisions={"submit": "0003", "gateway": ""},
    running=True,
)
OUTPUT = "output/t1a2b3/1/0.log"
PARTS = {
    DATABASE: b"d" * (CHUNK_BYTES + 1),
    "folder/admin-token": b"sat_x\n",
    OUTPUT: b"",
    "output/t1a2b3/1/0.times": b"0" * 512,
}


def written(path: Path, parts: dict[str, bytes] = PARTS, manifest: Manifest = MANIFEST) -> Path:
    with path.open("w+b") as file:
        writer = BackupWriter(file, manifest)
        for name, content in parts.items():
            writer.add(name, [content[:7], content[7:]])
        writer.close()
    return path


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return written(tmp_path / "backup")


def test_what_is_written_is_read_again(backup: Path) -> None:
    assert verify(backup) == MANIFEST
    found = {part.name: b"".join(part.chunks()) for part in read_parts(backup)}
    assert {name: found[name] for name in PARTS} == PARTS


def test_ordinary_programs_read_and_check_it(backup: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", backup, "-C", tmp_path], check=True)
    subprocess.run(
        ["sha256sum", "--quiet", "--strict", "-c", "sha256sums"], cwd=tmp_path, check=True
    )


def test_a_part_larger_than_eight_gibibytes_has_a_header_of_the_same_length() -> None:
    header = part_header(DATABASE, 33 << 28, 0)
    assert len(header) == len(part_header(DATABASE, 0, 0)) == tarfile.BLOCKSIZE
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == 33 << 28


@pytest.mark.parametrize("name", [DATABASE, "folder/admin-token", "manifest.json", "sha256sums"])
def test_a_changed_byte_is_found_and_the_part_is_named(backup: Path, name: str) -> None:
    with tarfile.open(backup) as archive:
        at = archive.getmember(name).offset_data + 2
    data = bytearray(backup.read_bytes())
    data[at] ^= 1
    backup.write_bytes(data)
    expected = {"manifest.json": "manifest.json", "sha256sums": "manifest.json"}.get(name, name)
    with pytest.raises((DamagedError, NotABackupError), match=re.escape(expected)):
        verify(backup)


def test_an_incomplete_file_is_found(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", {DATABASE: b"d" * 3000, OUTPUT: b"x"}).read_bytes()
    # The checksums' last bytes are followed by nothing but padding.
    end = whole.rindex(f"  {OUTPUT}\n".encode()) + len(f"  {OUTPUT}\n")
    part = tmp_path / "part"
    for size in (*range(0, end, 97), *range(0, end, 512), end - 1):
        part.write_bytes(whole[:size])
        with pytest.raises((DamagedError, NotABackupError)):
            verify(part)


def test_a_part_that_is_missing_or_added_is_found(backup: Path, tmp_path: Path) -> None:
    def without(dropped: str, added: str = "") -> Path:
        changed = tmp_path / "changed"
        with tarfile.open(backup) as old, tarfile.open(changed, "w") as new:
            for member in old:
                if member.name == "sha256sums" and added:
                    new.addfile(tarfile.TarInfo(added))
                if member.name != dropped:
                    new.addfile(member, old.extractfile(member))
        return changed

    with pytest.raises(DamagedError, match="was changed"):
        verify(without(OUTPUT))
    with pytest.raises(DamagedError, match="times is missing"):
        verify(without("output/t1a2b3/1/0.times"))
    with pytest.raises(DamagedError, match="has no checksum"):
        verify(without("", added="output/t9/1/0.log"))
    with pytest.raises(DamagedError, match="its end is missing"):
        verify(without("sha256sums"))
    with pytest.raises(DamagedError, match="no part"):
        verify(without("", added="output/../x"))


@pytest.mark.parametrize("name", ["output/../../x", "output/t9/1/0.log", "database.dump"])
def test_a_part_behind_the_end_is_found(backup: Path, name: str) -> None:
    with tarfile.open(backup, "a") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(DamagedError, match="behind its end"):
        verify(backup)


@pytest.mark.parametrize("content", [b"", b"no backup", b"\0" * 20_480])
def test_another_file_is_not_taken_for_a_backup(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(NotABackupError):
        verify(file)


def test_another_archive_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with tarfile.open(file, "w") as archive:
        archive.addfile(tarfile.TarInfo("something"))
    with pytest.raises(NotABackupError, match="something"):
        read_manifest(file)


def test_a_newer_format_is_named_before_anything_else_is_read() -> None:
    document = {"format": FORMAT + 1, "version": "9.0.0", "whatever": "it holds"}
    with pytest.raises(NewerBackupError, match=r"version 9\.0\.0 made it"):
        decode_manifest(json.dumps(document).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"format": "1"},
        {"format": 0},
        {"format": True},
        {"created_at": "yesterday"},
        {"created_at": "2026-11-23T20:00:00"},
        {"revisions": ["submit"]},
    ],
)
def test_a_manifest_of_another_form_is_refused(change: dict[str, object]) -> None:
    document = json.loads(MANIFEST.encode()) | change
    with pytest.raises(NotABackupError):
        decode_manifest(json.dumps(document).encode())
    assert decode_manifest(MANIFEST.encode()) == MANIFEST


def test_a_schema_that_this_version_does_not_know_is_newer() -> None:
    known = {"submit": "0004", "gateway": "0010"}
    assert newer_schemas({"submit": "0003", "gateway": "0010"}, known) == []
    assert newer_schemas({"submit": "", "billing": ""}, known) == []
    assert newer_schemas({"submit": "0005", "gateway": "0010"}, known) == ["submit"]
    assert newer_schemas({"billing": "0001"}, known) == ["billing"]


def test_only_names_of_a_backup_are_known() -> None:
    assert all(is_known(name) for name in PARTS)
    wrong = ["output/t1/1/../x.log", "output/t1/1/0.txt", "/etc/passwd", "folder/secrets/x", "x"]
    assert not any(is_known(name) for name in wrong)
