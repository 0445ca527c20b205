"""The file of a backup: a tar archive with a manifest first and the checksums of all parts last.

``BackupWriter`` streams parts of unknown size into it; ``read_parts`` streams them back, and
``verify`` compares every part with its checksum. The memory that they use does not grow with the
file. After ``tar -xf FILE``, ``sha256sum -c sha256sums`` checks the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from libs.contracts.ids import TASK_ID_FORM
from libs.service.version import VERSION

# Grows when an older version can no longer read what a newer one writes.
FORMAT = 2
MANIFEST, DATABASE, CHECKSUMS = "manifest.json", "database.dump", "sha256sums"
# Files of the data folder, by their names in a backup.
FOLDER_PARTS: Mapping[str, str] = {
    "folder/admin-token": "admin-token",
    "folder/options.json": "options.json",
    "folder/drained.json": "drained.json",
    "folder/owners.json": "machine/owners.json",
}
# Of a rank: its bytes by segments, and its time stamps; as written, or sealed.
OUTPUT = re.compile(
    rf"output/{TASK_ID_FORM}/[0-9]{{1,19}}/[0-9]{{1,19}}((\.[0-9]{{1,19}})?\.log|\.times)(\.zst)?"
)
CHUNK_BYTES = 1 << 20
# What is read as a whole has a limit. The database and the outputs are streamed.
BYTES_MAX: Mapping[str, int] = {
    MANIFEST: 1 << 20,
    "folder/admin-token": 4096,
    "folder/options.json": 1 << 20,
    "folder/drained.json": 16 << 20,
    "folder/owners.json": 16 << 20,
}
PARTS_MAX = 20_000_000
# Of the checksums: a digest and a name.
LINE_BYTES_MAX = 256
EARLIEST, LATEST = datetime(2020, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
REVISIONS_MAX = 100
_NAME = re.compile(r"[a-z][a-z_]{0,62}")
_REVISION = re.compile(r"[0-9]{0,8}")
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,64}")
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(RecursionError, OverflowError),
)
_BLOCK = tarfile.BLOCKSIZE
_MODE = 0o600


class NotABackupError(Exception):
    """The file is something else."""


class DamagedError(Exception):
    """The file was a backup, and is incomplete or was changed."""


class NewerBackupError(Exception):
    """A newer version made the backup."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says about itself."""

    created_at: datetime
    # The revision of each service's schema; empty for one that was never set up.
    revisions: Mapping[str, str]
    # Whether the platform ran at that time.
    running: bool
    version: str = VERSION
    format: int = FORMAT

    def encode(self) -> bytes:
        """The manifest as JSON."""
        found = {**asdict(self), "created_at": self.created_at.isoformat()}
        return (json.dumps(found, indent=1) + "\n").encode()


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest. Raises NotABackupError, or NewerBackupError for a newer format."""
    try:
        found: Any = json.loads(data)
        form = found["format"]
        if type(form) is int and form > FORMAT:
            version = _text(found.get("version", "unknown"), _VERSION)
            raise NewerBackupError(
                f"version {version} made it, in format {form}; "
                f"this version ({VERSION}) reads formats up to {FORMAT}"
            )
        revisions = cast("dict[Any, Any]", found["revisions"])
        manifest = Manifest(
            created_at=datetime.fromisoformat(found["created_at"]),
            revisions={
                _text(name, _NAME): _text(revision, _REVISION)
                for name, revision in revisions.items()
            },
            running=bool(found["running"]),
            version=_text(found["version"], _VERSION),
            format=form,
        )
        if len(revisions) > REVISIONS_MAX:
            raise ValueError(f"{len(revisions)} revisions")
        # Also one that is too near to the limits of the calendar to be reckoned with.
        if not EARLIEST <= manifest.created_at <= LATEST:
            raise ValueError(f"created_at {manifest.created_at.isoformat()}")
    except _UNREADABLE as problem:
        raise NotABackupError(f"its {MANIFEST} cannot be read: {problem!r:.200}") from None
    if type(form) is not int or form < 1:
        raise NotABackupError(f"its {MANIFEST} names no format")
    return manifest


def _text(value: object, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{value!r:.80}")
    return value


def newer_schemas(made: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """The services whose schema in a backup is newer than the one that this version knows, and
    those that this version does not have."""
    return sorted(
        name
        for name, revision in made.items()
        if revision and (name not in known or revision > known[name])
    )


def part_header(name: str, size: int, at: int) -> bytes:
    """The header of a part: one block, whatever the size. ``at``: seconds since 1970."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, _MODE, at
    # This format keeps sizes above 8 GiB in a header of the same length.
    header = info.tobuf(tarfile.GNU_FORMAT)
    assert len(header) == _BLOCK, f"{name}: the name is too long"
    return header


class BackupWriter:
    """Writes a backup to an empty file that can be read and sought in. ``close`` completes it."""

    def __init__(self, file: IO[bytes], manifest: Manifest) -> None:
        self._file = file
        self._sums: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._at = int(manifest.created_at.timestamp())
        self.add(MANIFEST, [manifest.encode()])

    def add(self, name: str, chunks: Iterable[bytes]) -> int:
        """Append a part; return its bytes. The size is written into its header afterwards."""
        digest, size = hashlib.sha256(), 0
        header_at = self._file.tell()
        self._file.write(bytes(_BLOCK))
        for chunk in chunks:
            digest.update(chunk)
            self._file.write(chunk)
            size += len(chunk)
        self._end_part(header_at, name, size)
        self._sums.write(_sum_line(digest.hexdigest(), name))
        return size

    def _end_part(self, header_at: int, name: str, size: int) -> None:
        self._file.write(bytes(-size % _BLOCK))
        end = self._file.tell()
        self._file.seek(header_at)
        self._file.write(part_header(name, size, self._at))
        self._file.seek(end)

    def close(self) -> None:
        """Append the checksums and the end of the archive."""
        header_at = self._file.tell()
        self._file.write(bytes(_BLOCK))
        self._sums.seek(0)
        size = 0
        while chunk := self._sums.read(CHUNK_BYTES):
            self._file.write(chunk)
            size += len(chunk)
        self._end_part(header_at, CHECKSUMS, size)
        self._file.write(bytes(2 * _BLOCK))
        self._file.flush()
        self.release()

    def release(self) -> None:
        """Forget the checksums, also of a file that is not completed."""
        self._sums.close()


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a backup, to be read before the next one is."""

    name: str
    size: int
    file: IO[bytes]

    def chunks(self) -> Iterator[bytes]:
        """Yield its bytes. Raises DamagedError if the file ends before them."""
        left = self.size
        while left:
            chunk = self.file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise DamagedError(f"it ends within {self.name}")
            left -= len(chunk)
            yield chunk

    def lines(self) -> Iterator[bytes]:
        """Yield its lines with their ends. Raises DamagedError also for a line that no backup
        has."""
        rest = b""
        for chunk in self.chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in whole)
            if len(rest) > LINE_BYTES_MAX:
                raise DamagedError(f"{self.name} has a line of more than {LINE_BYTES_MAX} bytes")
        if rest:
            yield rest


def read_parts(file: Path) -> Iterator[Part]:
    """Yield the parts in their order. Raises NotABackupError, DamagedError or OSError."""
    if file.exists() and not file.is_file():
        raise NotABackupError("it is no plain file")
    with file.open("rb") as archive:
        bytes_in_file = os.fstat(archive.fileno()).st_size
        count = at = 0
        while (header := archive.read(_BLOCK)) != bytes(_BLOCK):
            if count and not header:
                # Only its checksums say whether a backup is complete.
                return
            member = _member(header, at)
            if at + _BLOCK + member.size > bytes_in_file:
                raise DamagedError(f"it ends within {member.name!r:.80}")
            count += 1
            if count > PARTS_MAX:
                raise DamagedError(f"it has more than {PARTS_MAX} parts")
            yield Part(member.name, member.size, archive)
            at += _BLOCK + member.size + (-member.size % _BLOCK)
            archive.seek(at)
        if not count:
            raise NotABackupError("it begins with nothing")
        while chunk := archive.read(CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                raise DamagedError("there is something behind its end")


def _member(header: bytes, at: int) -> tarfile.TarInfo:
    """What a header says. Only such headers are accepted as ``part_header`` makes: the others that
    archives may have (links, sparse files, long names) would let a small file claim any size, or
    take any memory. Raises NotABackupError or DamagedError."""
    begun = at > 0
    try:
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError, OverflowError) as problem:
        raise _damaged(begun, f"at byte {at}: {problem}") from None
    if member.type != tarfile.REGTYPE or member.size < 0:
        raise _damaged(begun, f"{member.name!r:.80} is no plain file")
    if not begun and member.name != MANIFEST:
        raise NotABackupError(f"it begins with {member.name!r:.80}")
    return member


def _damaged(begun: bool, problem: str) -> Exception:
    return DamagedError(problem) if begun else NotABackupError(problem)


def read_manifest(file: Path) -> Manifest:
    """Read the first part. Raises NotABackupError, NewerBackupError, DamagedError or OSError."""
    for part in read_parts(file):
        return _manifest_of(part)
    raise NotABackupError("it is an empty archive")


def _manifest_of(part: Part) -> Manifest:
    if part.size > BYTES_MAX[MANIFEST]:
        raise NotABackupError(f"its {MANIFEST} has {part.size} bytes")
    return decode_manifest(b"".join(part.chunks()))


def is_known(name: str) -> bool:
    """True for every name that a backup may have."""
    return name in {MANIFEST, DATABASE, CHECKSUMS, *FOLDER_PARTS} or bool(OUTPUT.fullmatch(name))


class _Order:
    """The rules about the names of parts: which there are, in which order, and how often."""

    # The manifest and the checksums frame the others; of the outputs there are many.
    PLACES: Mapping[str, int] = {MANIFEST: 0, DATABASE: 1, **dict.fromkeys(FOLDER_PARTS, 2)}
    OUTPUTS, END = 3, 4

    def __init__(self) -> None:
        self._place, self._last = -1, ""
        # On the disk if there are many.
        self._names = sqlite3.connect("")
        self._names.execute("CREATE TABLE names (name TEXT PRIMARY KEY) WITHOUT ROWID")

    def check(self, part: Part) -> None:
        """Raise DamagedError for a part that may not be where it is."""
        if self._place == self.END:
            raise DamagedError(f"{part.name!r:.80} is behind its end")
        if not is_known(part.name):
            raise DamagedError(f"a backup has no part {part.name!r:.80}")
        if part.name in BYTES_MAX and part.size > BYTES_MAX[part.name]:
            raise DamagedError(
                f"{part.name} has {part.size} bytes, and {BYTES_MAX[part.name]} are the most"
            )
        try:
            self._names.execute("INSERT INTO names VALUES (?)", (part.name,))
        except sqlite3.IntegrityError:
            raise DamagedError(f"it has {part.name} twice") from None
        place = self.END if part.name == CHECKSUMS else self.PLACES.get(part.name, self.OUTPUTS)
        if place < self._place:
            raise DamagedError(f"{part.name} is behind {self._last}")
        self._place, self._last = place, part.name

    def close(self) -> None:
        """Forget the names."""
        self._names.close()


def verify(file: Path, report: Callable[[int], None] = lambda _: None) -> Manifest:
    """Compare every part with its checksum, and its name with those that a backup has; nothing is
    written. ``report`` gets the bytes read.

    Raises NotABackupError, NewerBackupError, DamagedError or OSError.
    """
    manifest = read_manifest(file)
    seen = set[str]()
    read = 0
    with tempfile.TemporaryFile() as sums, contextlib.closing(_Order()) as order:
        for part in read_parts(file):
            order.check(part)
            if part.name in {DATABASE, CHECKSUMS}:
                seen.add(part.name)
            if part.name == CHECKSUMS:
                _compare(sums, part)
                continue
            digest = hashlib.sha256()
            for chunk in part.chunks():
                digest.update(chunk)
                read += len(chunk)
                report(read)
            sums.write(_sum_line(digest.hexdigest(), part.name))
    if CHECKSUMS not in seen:
        raise DamagedError("it is incomplete: its end is missing")
    if DATABASE not in seen:
        raise DamagedError(f"it has no {DATABASE}")
    return manifest


def _compare(found: IO[bytes], expected: Part) -> None:
    """Compare the checksums of the parts that were read with those in the file, line by line."""
    found.seek(0)
    for expected_line in expected.lines():
        found_line = found.readline()
        if not found_line:
            name = expected_line.decode(errors="replace").partition("  ")[2].strip()
            raise DamagedError(f"{name if is_known(name) else 'a part'} is missing")
        if found_line != expected_line:
            raise DamagedError(f"{found_line.decode().partition('  ')[2].strip()} was changed")
    if extra := found.readline():
        raise DamagedError(f"{extra.decode().partition('  ')[2].strip()} has no checksum")


def _sum_line(digest: str, name: str) -> bytes:
    return f"{digest}  {name}\n".encode()
