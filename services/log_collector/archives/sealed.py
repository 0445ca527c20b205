"""Sealed segments as files: written whole or not at all, read frame by frame.

Used by ``files`` in its threads. Opened files' tables and the frames of the last reads are cached,
because a search for a time reads the same few frames again and again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.log_collector.archives import seekable
from services.log_collector.archives.metrics import DAMAGED
from services.log_collector.archives.recent import Recent
from services.log_collector.archives.seekable import DamagedError, Frame, SeekTable

# Of how many files the tables are remembered, and how many decompressed frames.
TABLES_MAX, FRAMES_MAX = 256, 32
T = TypeVar("T")


# A file by what it is, so that a new one of the same name is another.
FileId = tuple[int, int, int, int]


class SealedFiles:
    """Reads sealed segments of this disk."""

    def __init__(self) -> None:
        self._tables: Recent[FileId, SeekTable] = Recent(TABLES_MAX)
        self._frames: Recent[tuple[FileId, int], bytes] = Recent(FRAMES_MAX)

    def read(self, path: Path, offset: int, bytes_max: int) -> bytes | None:
        """Up to so many plain bytes; None if there is no such file."""
        return self._with(path, lambda opened: self._read(opened, offset, bytes_max))

    def size(self, path: Path) -> int | None:
        """How many plain bytes it has; None if there is no such file."""
        return self._with(path, lambda opened: self._table(opened).size)

    def _with(self, path: Path, work: Callable[[Opened], T]) -> T | None:
        try:
            number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            found = os.fstat(number)
            opened = Opened(
                number,
                found.st_size,
                (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns),
            )
            return work(opened)
        finally:
            os.close(number)

    def _table(self, opened: Opened) -> SeekTable:
        table = self._tables.get(opened.identity)
        if table is None:
            try:
                footer = opened.read(opened.size - seekable.FOOTER_BYTES, seekable.FOOTER_BYTES)
                length = seekable.table_bytes(footer)
                table = seekable.parse(opened.read(opened.size - length, length), opened.size)
            except DamagedError:
                # Its frames are sound most likely, and each says itself where it ends.
                table = seekable.walk(opened.read)
                DAMAGED.inc(seekable.FOOTER_BYTES)
            self._tables.put(opened.identity, table)
        return table

    def _read(self, opened: Opened, offset: int, bytes_max: int) -> bytes:
        frames = self._table(opened).frames(offset, bytes_max)
        plain = [self._frame(opened, frame) for frame in frames]
        if None in plain and self._distrust_table(opened):
            return self._read(opened, offset, bytes_max)
        data = b"".join(
            seekable.filler(frame.size) if each is None else each
            for frame, each in zip(frames, plain, strict=True)
        )
        DAMAGED.inc(sum(frame.size for frame, each in zip(frames, plain, strict=True) if not each))
        start = offset - frames[0].offset if frames else 0
        return data[start : start + bytes_max]

    def _distrust_table(self, opened: Opened) -> bool:
        """For a frame that is not as the table says: whether that is wrong, and was replaced."""
        walked = seekable.walk(opened.read)
        if self._table(opened).contains(walked):
            return False
        self._tables.put(opened.identity, walked)
        return True

    def _frame(self, opened: Opened, frame: Frame) -> bytes | None:
        """Its plain bytes; None if it is damaged."""
        identity = (opened.identity, frame.at)
        plain = self._frames.get(identity)
        if plain is None:
            try:
                plain = seekable.decode(frame, opened.read(frame.at, frame.stored))
            except OSError:  # the disk cannot read this place
                plain = None
            if plain is not None:
                self._frames.put(identity, plain)
        return plain


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file."""

    number: int
    size: int
    identity: FileId

    def read(self, at: int, count: int) -> bytes:
        """Bytes of the file as it is."""
        return os.pread(self.number, count, max(0, at))


def write_sealed(
    path: Path, read: Callable[[int], bytes], may_replace: Callable[[], object], mode: int
) -> int:
    """Write a sealed file, synced, under a name of its own first; ``may_replace`` raises if it must
    not get its name. The folder is not synced. Returns its size."""
    new = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    number = os.open(new, flags, mode)
    try:
        with os.fdopen(number, "wb") as file:
            seekable.compress(read, file.write)
            file.flush()
            os.fsync(number)
            size = os.fstat(number).st_size
        may_replace()
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return size
