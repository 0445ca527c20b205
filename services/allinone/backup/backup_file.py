"""The file of a backup: a tar archive with a manifest first and the checksums of all parts last.

``BackupWriter`` streams parts of unknown size into it; ``read_parts`` streams them back, and
``verify`` compares every part with its checksum. The memory that they use does not grow with the
file. After ``tar -xf FILE``, ``sha256sum -c sha256sums`` checks the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from libs.contracts.ids import TASK_ID_FORM
from libs.service.version import VERSION

# Grows when an older version can no longer read what a newer one writes.
FORMAT = 1
MANIFEST, DATABASE, CHECKSUMS = "manifest.json", "database.dump", "sha256sums"
# Files of the data folder, by their names in a backup.
FOLDER_PARTS: Mapping[str, str] = {
    "folder/admin-token": "admin-token",
    "folder/options.json": "options.json",
    "folder/drained.json": "drained.json",
    "folder/owners.json": "machine/owners.json",
}
OUTPUT = re.compile(rf"output/{TASK_ID_FORM}/[0-9]{{1,19}}/[0-9]{{1,19}}\.(log|times)")
CHUNK_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 1 << 20
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
            raise NewerBackupError(
                f"version {found.get('version')} made it, in format {form}; "
                f"this version ({VERSION}) reads formats up to {FORMAT}"
            )
        revisions = cast("dict[Any, Any]", found["revisions"])
        manifest = Manifest(
            created_at=datetime.fromisoformat(found["created_at"]),
            revisions={str(name): str(revision) for name, revision in revisions.items()},
            running=bool(found["running"]),
            version=str(found["version"]),
            format=form,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        raise NotABackupError(f"its {MANIFEST} cannot be read: {problem!r}") from None
    if type(form) is not int or form < 1 or manifest.created_at.tzinfo is None:
        raise NotABackupError(f"its {MANIFEST} names no format, or no time zone")
    return manifest


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
            try:
                chunk = self.file.read(min(CHUNK_BYTES, left))
            except tarfile.TarError:
                chunk = b""
            if not chunk:
                raise DamagedError(f"it ends within {self.name}")
            left -= len(chunk)
            yield chunk


def read_parts(file: Path) -> Iterator[Part]:
    """Yield the parts in their order. Raises NotABackupError, DamagedError or OSError."""
    begun = False
    try:
        with tarfile.open(file, "r:") as archive:
            while (member := archive.next()) is not None:
                # Otherwise the archive remembers every member.
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - the documented list of members
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    raise _damaged(begun, f"{member.name!r:.80} is no plain file")
                if not begun and member.name != MANIFEST:
                    raise NotABackupError(f"it begins with {member.name!r:.80}")
                begun = True
                yield Part(member.name, member.size, content)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as problem:
        raise _damaged(begun, str(problem)) from None


def _damaged(begun: bool, problem: str) -> Exception:
    return DamagedError(problem) if begun else NotABackupError(problem)


def read_manifest(file: Path) -> Manifest:
    """Read the first part. Raises NotABackupError, NewerBackupError, DamagedError or OSError."""
    for part in read_parts(file):
        return _manifest_of(part)
    raise NotABackupError("it is an empty archive")


def _manifest_of(part: Part) -> Manifest:
    if part.size > MANIFEST_BYTES_MAX:
        raise NotABackupError(f"its {MANIFEST} has {part.size} bytes")
    return decode_manifest(b"".join(part.chunks()))


def is_known(name: str) -> bool:
    """True for every name that a backup may have."""
    return name in {MANIFEST, DATABASE, CHECKSUMS, *FOLDER_PARTS} or bool(OUTPUT.fullmatch(name))


def verify(file: Path, report: Callable[[int], None] = lambda _: None) -> Manifest:
    """Compare every part with its checksum; nothing is written. ``report`` gets the bytes read.

    Raises NotABackupError, NewerBackupError, DamagedError or OSError.
    """
    manifest = read_manifest(file)
    has_database = compared = False
    read = 0
    with tempfile.TemporaryFile() as sums:
        for part in read_parts(file):
            if compared:
                raise DamagedError(f"{part.name!r:.80} is behind its end")
            if not is_known(part.name):
                raise DamagedError(f"a backup has no part {part.name!r:.80}")
            if part.name == CHECKSUMS:
                try:
                    _compare(sums, part)
                except tarfile.TarError:
                    raise DamagedError(f"it ends within {CHECKSUMS}") from None
                compared = True
                continue
            has_database |= part.name == DATABASE
            digest = hashlib.sha256()
            for chunk in part.chunks():
                digest.update(chunk)
                read += len(chunk)
                report(read)
            sums.write(_sum_line(digest.hexdigest(), part.name))
    if not compared:
        raise DamagedError("it is incomplete: its end is missing")
    if not has_database:
        raise DamagedError(f"it has no {DATABASE}")
    return manifest


def _compare(found: IO[bytes], expected: Part) -> None:
    """Compare the checksums of the parts that were read with those in the file, line by line."""
    found.seek(0)
    while expected_line := expected.file.readline(CHUNK_BYTES):
        found_line = found.readline(CHUNK_BYTES)
        if not found_line:
            name = expected_line.decode(errors="replace").partition("  ")[2].strip()
            raise DamagedError(f"{name or 'a part'} is missing")
        if found_line != expected_line:
            raise DamagedError(f"{found_line.decode().partition('  ')[2].strip()} was changed")
    if extra := found.readline(CHUNK_BYTES):
        raise DamagedError(f"{extra.decode().partition('  ')[2].strip()} has no checksum")


def _sum_line(digest: str, name: str) -> bytes:
    return f"{digest}  {name}\n".encode()
