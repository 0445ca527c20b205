"""Kept outputs as files: ``<logs_dir>/<task>/<attempt>/<rank>.log``, readable by the owner only.

Beside each is ``<rank>.times``: its time stamps, 16 bytes each (``domain.packed``). ``.writer`` has
the epoch of the leader that writes; each batch reads it first. So a process that does not know yet
that it no longer leads may still write what it began, but nothing more. Used by ``main.py``.

Disk work is done in a thread, one hop for a whole batch, so that a slow disk never holds up the
event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from libs.service.disk import spare_problem
from services.log_collector.archives.port import ArchiveError, NotWriterError, Write
from services.log_collector.domain import (
    TIMESTAMP_BYTES,
    OutputKey,
    Timestamp,
    packed,
    unpacked,
)

# Files are synced side by side: the journal of the disk takes several at once.
SYNC_THREADS = 4
T = TypeVar("T")
FILE_MODE, FOLDER_MODE = 0o600, 0o700
WRITER, WRITER_BYTES_MAX = ".writer", 32


class FileArchive:
    """Kept outputs below one folder."""

    def __init__(self, logs_dir: Path) -> None:
        self._logs_dir = logs_dir
        # Outputs whose folder entries are on disk.
        self._entered: set[OutputKey] = set()

    def path(self, key: OutputKey) -> Path:
        """The path of an output."""
        return self._logs_dir / key.task_id / str(key.attempt) / f"{key.rank}.log"

    def times_path(self, key: OutputKey) -> Path:
        """The path of its time stamps."""
        return self.path(key).with_suffix(".times")

    async def admit(self, epoch: int) -> None:
        """Let this leader write from now on, and no other."""
        await _in_thread(lambda: self._admit(epoch))

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
        await _in_thread(lambda: self._write(writes, epoch))

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        parts = [keys[start::SYNC_THREADS] for start in range(min(SYNC_THREADS, len(keys)))]
        await asyncio.gather(*(_in_thread(partial(self._sync, part)) for part in parts))

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        return await _in_thread(lambda: _read(self.path(key), offset, bytes_max))

    async def size(self, key: OutputKey) -> int:
        """Bytes kept; 0 if there is no such output."""
        return await _in_thread(lambda: _size(self.path(key)))

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        return await _in_thread(lambda: [_size(self.path(key)) for key in keys])

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        """Up to so many time stamps from a number on; fewer if there are no more."""
        path, at = self.times_path(key), first * TIMESTAMP_BYTES
        return unpacked(await _in_thread(lambda: _read(path, at, count * TIMESTAMP_BYTES)))

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        """How many of the first ``count`` time stamps are before a place."""
        return await _in_thread(lambda: self._partition(key, count, is_before))

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0, *, epoch: int) -> None:
        """Drop the bytes beyond ``size``, and the time stamps beyond so many."""

        def work() -> None:
            self._check(epoch)
            _truncate(self.path(key), size)
            _truncate(self.times_path(key), timestamps * TIMESTAMP_BYTES)

        await _in_thread(work)

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        await _in_thread(lambda: self._remove(keys))

    def _admit(self, epoch: int) -> None:
        path = self._logs_dir / WRITER
        self._logs_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        new = path.with_name(f"{WRITER}.{epoch}")
        new.write_text(str(epoch))
        new.replace(path)

    def _check(self, epoch: int) -> None:
        text = _read(self._logs_dir / WRITER, 0, WRITER_BYTES_MAX)
        writer = int(text) if text.isdigit() else 0
        if writer != epoch:
            raise NotWriterError(epoch, writer)

    def _write(self, writes: Sequence[Write], epoch: int) -> None:
        self._check(epoch)
        for write in writes:
            if write.timestamps:
                at = write.number * TIMESTAMP_BYTES
                _put(self.times_path(write.key), at, packed(write.timestamps))
            _put(self.path(write.key), write.offset, write.data)

    def _sync(self, keys: Sequence[OutputKey]) -> None:
        folders: set[Path] = set()
        for key in keys:
            path = self.path(key)
            try:
                _sync_path(path, os.O_WRONLY)
                _sync_path(self.times_path(key), os.O_WRONLY)
            except FileNotFoundError:
                # An output without a byte has no file, and an old one perhaps no time stamps.
                if not path.exists():
                    continue
            if key not in self._entered:
                folders |= {path.parent, path.parent.parent, self._logs_dir}
        for folder in folders:
            _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._entered.update(keys)

    def _partition(self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]) -> int:
        path = self.times_path(key)
        try:
            number = os.open(path, _READ)
        except FileNotFoundError:
            return 0
        try:

            def is_after(index: int) -> bool:
                data = os.pread(number, TIMESTAMP_BYTES, index * TIMESTAMP_BYTES)
                return not is_before(unpacked(data)[0])

            known = min(count, os.fstat(number).st_size // TIMESTAMP_BYTES)
            return bisect_left(range(known), x=True, key=is_after)
        finally:
            os.close(number)

    def _remove(self, keys: Sequence[OutputKey]) -> None:
        for key in keys:
            self.path(key).unlink(missing_ok=True)
            self.times_path(key).unlink(missing_ok=True)
            self._entered.discard(key)
        for folder in {self.path(key).parent for key in keys}:
            _remove_if_empty(folder)
            _remove_if_empty(folder.parent)


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _put(path: Path, at: int, data: bytes) -> None:
    try:
        number = os.open(path, _WRITE, FILE_MODE)
    except FileNotFoundError:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        number = os.open(path, _WRITE, FILE_MODE)
    try:
        if problem := spare_problem(number):
            # The output stays with its source, and is written when there is space again.
            raise OSError(errno.ENOSPC, problem)
        left = memoryview(data)
        while left:
            done = os.pwrite(number, left, at)
            at, left = at + done, left[done:]
    finally:
        os.close(number)


def _read(path: Path, offset: int, bytes_max: int) -> bytes:
    try:
        number = os.open(path, _READ)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(number, bytes_max, offset)
    finally:
        os.close(number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _truncate(path: Path, size: int) -> None:
    if _size(path) > size:
        os.truncate(path, size)


def _sync_path(path: Path, flags: int) -> None:
    number = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # not empty, or gone already


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise ArchiveError(str(error)) from error
