"""Kept outputs as files: ``<logs_dir>/<task>/<attempt>/<rank>.log``, readable by the owner only.

Used by ``main.py``. Disk work is done in a thread, one hop for a whole batch, so that a slow disk
never holds up the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from libs.service.disk import spare_problem
from services.log_collector.archives.port import ArchiveError, Write
from services.log_collector.domain import OutputKey

# Files are synced side by side: the journal of the disk takes several at once.
SYNC_THREADS = 4
T = TypeVar("T")
FILE_MODE, FOLDER_MODE = 0o600, 0o700


class FileArchive:
    """Kept outputs below one folder."""

    def __init__(self, logs_dir: Path) -> None:
        self._logs_dir = logs_dir
        # Outputs whose folder entries are on disk.
        self._entered: set[OutputKey] = set()

    def path(self, key: OutputKey) -> Path:
        """Where an output lies."""
        return self._logs_dir / key.task_id / str(key.attempt) / f"{key.rank}.log"

    async def write(self, writes: Sequence[Write]) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
        await _in_thread(lambda: self._write(writes))

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        parts = [keys[start::SYNC_THREADS] for start in range(min(SYNC_THREADS, len(keys)))]
        await asyncio.gather(*(_in_thread(partial(self._sync, part)) for part in parts))

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        return await _in_thread(lambda: self._read(key, offset, bytes_max))

    async def size(self, key: OutputKey) -> int:
        """Bytes kept; 0 if there is no such output."""
        return await _in_thread(lambda: self._size(key))

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        return await _in_thread(lambda: [self._size(key) for key in keys])

    async def truncate(self, key: OutputKey, size: int) -> None:
        """Drop what is beyond ``size``."""
        await _in_thread(lambda: self._truncate(key, size))

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        await _in_thread(lambda: self._remove(keys))

    def _write(self, writes: Sequence[Write]) -> None:
        for write in writes:
            number = self._open(self.path(write.key))
            try:
                if problem := spare_problem(number):
                    # It stays with its source, and is written when there is room again.
                    raise OSError(errno.ENOSPC, problem)
                at, left = write.offset, memoryview(write.data)
                while left:
                    done = os.pwrite(number, left, at)
                    at, left = at + done, left[done:]
            finally:
                os.close(number)

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags, FILE_MODE)
        except FileNotFoundError:
            path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            return os.open(path, flags, FILE_MODE)

    def _sync(self, keys: Sequence[OutputKey]) -> None:
        folders: set[Path] = set()
        for key in keys:
            path = self.path(key)
            try:
                _sync_path(path, os.O_WRONLY)
            except FileNotFoundError:
                continue  # an output without a byte has no file
            if key not in self._entered:
                folders |= {path.parent, path.parent.parent, self._logs_dir}
        for folder in folders:
            _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._entered.update(keys)

    def _read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        try:
            number = os.open(self.path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(number, bytes_max, offset)
        finally:
            os.close(number)

    def _size(self, key: OutputKey) -> int:
        try:
            return self.path(key).stat().st_size
        except FileNotFoundError:
            return 0

    def _truncate(self, key: OutputKey, size: int) -> None:
        if self._size(key) > size:
            os.truncate(self.path(key), size)

    def _remove(self, keys: Sequence[OutputKey]) -> None:
        for key in keys:
            path = self.path(key)
            path.unlink(missing_ok=True)
            self._entered.discard(key)
        for folder in {self.path(key).parent for key in keys}:
            _remove_if_empty(folder)
            _remove_if_empty(folder.parent)


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
