"""Files that look like backups and are none: each is refused with the part that is wrong, before
anything is written."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shiftwork.cli.failures import Failure

from services.allinone.backup import backup_file
from services.allinone.backup.backup_file import (
    BYTES_MAX,
    DATABASE,
    FOLDER_PARTS,
    BackupWriter,
    DamagedError,
    Manifest,
    NewerBackupError,
    NotABackupError,
    decode_manifest,
    read_parts,
    verify,
)
from services.allinone.backup.restore import check_backup, restore
from services.allinone.data_folder import DataFolder

MANIFEST = Manifest(datetime(2026, 11, 23, tzinfo=UTC), {"submit": "0003"}, running=True)
DUMP = b"PGDMP and more"
OUTPUT = "output/t1a2b3/1/0.log"
Parts = Sequence[tuple[str, bytes]]
GOOD: Parts = (
    (DATABASE, DUMP),
    ("folder/admin-token", b"sat_x\n"),
    ("folder/options.json", b'{"port": 8000}'),
    ("folder/drained.json", b'["local-0"]'),
    ("folder/owners.json", b'{"ann": 100000}'),
    (OUTPUT, b"some output\n"),
)


@contextlib.contextmanager
def a_file(content: bytes) -> Generator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "backup"
        file.write_bytes(content)
        yield file


def crafted(parts: Parts, manifest: Manifest = MANIFEST) -> bytes:
    """A backup of these parts whose checksums are all right."""
    with tempfile.TemporaryFile("w+b") as file:
        writer = BackupWriter(file, manifest)
        for name, content in parts:
            writer.add(name, [content])
        writer.close()
        file.seek(0)
        return file.read()


def problem_of(file: Path) -> str:
    """What is wrong with it; empty: nothing."""
    try:
        asyncio.run(check_backup(file, lambda _: None))
    except Failure as failure:
        return failure.what if failure.fix else "it says no fix"
    return ""


def test_a_whole_backup_is_accepted() -> None:
    with a_file(crafted(GOOD)) as file:
        assert problem_of(file) == ""


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([(DATABASE, DUMP), *GOOD], f"it has {DATABASE} twice"),
        ([*GOOD, GOOD[-1]], f"it has {OUTPUT} twice"),
        ([GOOD[0], *GOOD[2:], GOOD[1]], f"folder/admin-token is behind {OUTPUT}"),
        ([*GOOD[1:], GOOD[0]], f"{DATABASE} is behind {OUTPUT}"),
        (GOOD[1:], f"it has no {DATABASE}"),
        ([(DATABASE, b"SELECT 1"), *GOOD[1:]], f"{DATABASE} is not a dump"),
        ([(DATABASE, b""), *GOOD[1:]], f"{DATABASE} is not a dump"),
        ([*GOOD[:2], ("manifest.json", MANIFEST.encode())], "it has manifest.json twice"),
    ],
)
def test_parts_in_a_wrong_order_or_number_are_refused(parts: Parts, problem: str) -> None:
    with a_file(crafted(parts)) as file:
        assert problem in problem_of(file)


NOT_USABLE = {
    "folder/admin-token": [b"", b"\n", b"a b", b"sat_\xff", "sat_ä".encode(), b"a\nb"],
    "folder/options.json": [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b'{"port": "x"}',
        b'{"who": 1}',
        b"[" * 9999,
    ],
    "folder/drained.json": [b"", b"\xff\xfe", b"{}", b"[1]", b"[" * 9999],
    "folder/owners.json": [
        *(b"", b"\xff", b"[]", b'{"ann": "x"}', b'{"ann": true}', b'{"ann": 4294967295}'),
        *(b'{"ann": 0}', b'{"ann": 7, "ben": 7}', b'{"ann": -1}', b'{"ann": []}'),
    ],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, each) for name, all_ in NOT_USABLE.items() for each in all_]
)
def test_a_file_of_the_folder_that_cannot_be_used_is_refused_by_its_name(
    name: str, content: bytes
) -> None:
    parts = [(each, content if each == name else good) for each, good in GOOD]
    with a_file(crafted(parts)) as file:
        found = problem_of(file)
        assert name in found
        target = file.with_name("restored")
        with pytest.raises(Failure, match=name):
            asyncio.run(restore(file, DataFolder(target), lambda _: None))
        assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_what_is_read_as_a_whole_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(BYTES_MAX) == {"manifest.json", *FOLDER_PARTS}
    for name in FOLDER_PARTS:
        monkeypatch.setattr(backup_file, "BYTES_MAX", {**BYTES_MAX, name: 10})
        parts = [(each, b" " * 11 if each == name else good) for each, good in GOOD]
        with a_file(crafted(parts)) as file:
            assert f"{name} has 11 bytes, and 10 are the most" in problem_of(file)
    monkeypatch.undo()
    monkeypatch.setattr(backup_file, "PARTS_MAX", 5)
    with a_file(crafted(GOOD)) as file:
        assert "more than 5 parts" in problem_of(file)


def with_member(member: tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive with this member behind the manifest."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        first = tarfile.TarInfo("manifest.json")
        first.size = len(MANIFEST.encode())
        archive.addfile(first, io.BytesIO(MANIFEST.encode()))
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    return made.getvalue()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, b"Z"])
def test_a_member_that_is_no_plain_file_is_refused(kind: bytes) -> None:
    member = tarfile.TarInfo(DATABASE)
    member.type = kind
    with a_file(with_member(member)) as file:
        assert "is no plain file" in problem_of(file)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_header_that_takes_any_memory_is_refused(form: int) -> None:
    with a_file(with_member(tarfile.TarInfo("x" * 5000), form)) as file:
        assert "is no plain file" in problem_of(file)


def test_a_size_beyond_the_file_is_refused_before_anything_is_read() -> None:
    content = bytearray(crafted(GOOD))
    at = content.index(DATABASE.encode())
    content[at : at + 512] = backup_file.part_header(DATABASE, 1 << 60, 0)
    with a_file(bytes(content)) as file:
        assert f"it ends within '{DATABASE}'" in problem_of(file)


def test_what_is_behind_the_end_of_the_archive_is_found() -> None:
    with a_file(crafted(GOOD) + bytes(10_000)) as file:
        assert problem_of(file) == ""
    with a_file(crafted(GOOD) + bytes(10_000) + b"x") as file:
        assert "behind its end" in problem_of(file)


def test_no_folder_and_no_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        assert "no plain file" in problem_of(path)
    assert "No such file" in problem_of(tmp_path / "none")


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": "9999-12-31T23:59:59-14:00"},
        {"version": "1\x1b[2J"},
        {"version": "1" * 100},
        {"revisions": {"submit": "head"}},
        {"revisions": {"../submit": "0001"}},
        {"revisions": {"a" + "b" * each: "1" for each in range(60)} | {"A": "1"}},
        {"revisions": {"submit": "1" * 5000}},
    ],
)
def test_a_manifest_says_nothing_that_cannot_be_used_or_shown(change: dict[str, object]) -> None:
    document = json.loads(MANIFEST.encode()) | change
    with pytest.raises(NotABackupError) as refused:
        decode_manifest(json.dumps(document).encode())
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


# Properties

NAMES = st.sampled_from([name for name, _ in GOOD] + ["manifest.json", "x", "output/../x"])
CONTENTS = st.sampled_from([content for _, content in GOOD]) | st.binary(max_size=40)


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.tuples(NAMES, CONTENTS) | st.sampled_from(GOOD), max_size=7))
@example(parts=list(GOOD))
def test_a_crafted_backup_is_usable_or_refused(parts: list[tuple[str, bytes]]) -> None:
    with a_file(crafted(parts)) as file:
        found = problem_of(file)
        if found:
            assert found.isprintable()
            return
        names = [part.name for part in read_parts(file)]
        assert len(set(names)) == len(names)
        assert {name: content for name, content in parts if name == DATABASE}[DATABASE][:5] == DUMP[
            :5
        ]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "insert", "delete", "cut", "repeat"]),
        st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=600),
    ),
    min_size=1,
    max_size=3,
)
WHOLE = crafted(GOOD)


def changed(content: bytes, kind: str, at: int, data: bytes) -> bytes:
    at %= len(content) + 1
    blocks = at // 512 * 512
    return {
        "overwrite": content[:at] + data + content[at + len(data) :],
        "insert": content[:at] + data + content[at:],
        "delete": content[:at] + content[at + len(data) :],
        "cut": content[:at],
        "repeat": content[: blocks + 512] + content[blocks:],
    }[kind]


@settings(max_examples=120, deadline=None)
@given(changes=CHANGES)
def test_a_damaged_backup_is_refused_or_says_the_same(
    changes: list[tuple[str, int, bytes]],
) -> None:
    content = WHOLE
    for kind, at, data in changes:
        content = changed(content, kind, at, data)
    with a_file(content) as file:
        try:
            found = verify(file)
        except (NotABackupError, DamagedError, NewerBackupError):
            return
        assert replace(found, created_at=MANIFEST.created_at) == MANIFEST
        read = {part.name: b"".join(part.chunks()) for part in read_parts(file)}
        assert {name: read[name] for name, _ in GOOD} == dict(GOOD)
