"""Kept outputs as files in ``<logs_dir>/<task>/<attempt>/``, readable by the owner only.

| file | has |
| --- | --- |
| ``<rank>.log``, ``<rank>.<n>.log`` | the bytes of segment 0, and of segment n, as written |
| ``<rank>.times`` | the time stamps, 16 bytes each (``domain.packed``) |
| ``<rank>.log.zst``, ``<rank>.<n>.log.zst``, ``<rank>.times.zst`` | the same, sealed |

An output of a version without segments has all its bytes in ``<rank>.log``; a segment that this
file reaches into goes on in it.

A sealed file gets its name when it is complete and synced, and is read in preference; so the bytes
as written may be removed at any time after that. ``.writer`` has the epoch of the leader that
writes; each batch reads it first. So a process that does not know yet that it no longer leads may
still write what it began, but nothing more. Used by ``main.py``.

Disk work is done in a thread, one hop for a whole batch, so that a slow disk never holds up the
event loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from libs.service.disk import spare_problem
from libs.service.observability import log
from services.log_collector.archives import seekable
from services.log_collector.archives.metrics import DAMAGED, SEALED, UPLOADED
from services.log_collector.archives.port import (
    TIMES,
    ArchiveError,
    NotWriterError,
    Segment,
    Write,
)
from services.log_collector.archives.sealed import SealedFiles, write_sealed
from services.log_collector.domain import (
    TIMESTAMP_BYTES,
    OutputKey,
    Timestamp,
    packed,
    unpacked,
)

if TYPE_CHECKING:  # its client is large, and most archives have none
    from services.log_collector.archives.bucket import Bucket

# The layout of every archive: a segment's number is that of its first byte divided by this.
SEGMENT_BYTES = 64 * 1024**2
# Files are synced side by side: the journal of the disk takes several at once.
SYNC_THREADS = 4
T = TypeVar("T")
FILE_MODE, FOLDER_MODE = 0o600, 0o700
WRITER, WRITER_BYTES_MAX = ".writer", 32
# A copy of this size is held in memory while bytes move.
COPY_BYTES = 1_048_576
# The space that is left on the disk is checked once for so many bytes.
SPACE_CHECK_BYTES = 1_048_576


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that has bytes of an output as written, and the offset of its first one."""

    path: Path
    begin: int
    size: int

    @property
    def end(self) -> int:
        """The offset behind its last byte."""
        return self.begin + self.size


def file_name(rank: int, number: int) -> str:
    """The name of the file that has a segment's bytes as written."""
    if number == TIMES:
        return f"{rank}.times"
    return f"{rank}.{number}.log" if number else f"{rank}.log"


def sealed_name(segment: Segment) -> str:
    """The place of a sealed segment below the archive's folder, and in a bucket."""
    key = segment.key
    return f"{key.task_id}/{key.attempt}/{file_name(key.rank, segment.number)}.zst"


class FileArchive:
    """Kept outputs below one folder, sealed ones perhaps in a bucket."""

    def __init__(
        self, logs_dir: Path, bucket: Bucket | None = None, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._logs_dir = logs_dir
        # Joined as text: every write needs two paths.
        self._root = str(logs_dir)
        self._bucket = bucket
        self._segment_bytes = segment_bytes
        self._sealed = SealedFiles()
        # Outputs whose folder entries are on disk.
        self._entered: set[OutputKey] = set()
        # Files that were written to since they were synced.
        self._unsynced: dict[OutputKey, set[str]] = {}
        self._lock = Lock()

    @property
    def segment_bytes(self) -> int:
        """The size of every segment but the last of an output."""
        return self._segment_bytes

    @property
    def has_bucket(self) -> bool:
        """Whether segments are uploaded."""
        return self._bucket is not None

    def path(self, key: OutputKey, number: int = 0) -> Path:
        """The path of an output's bytes as written, from a segment on."""
        return Path(self._place(key, number))

    def times_path(self, key: OutputKey) -> Path:
        """The path of its time stamps as written."""
        return self.path(key, TIMES)

    def sealed_path(self, key: OutputKey, number: int) -> Path:
        """The path of a sealed segment."""
        return self._logs_dir / sealed_name(Segment(key, number, 0))

    async def admit(self, epoch: int) -> None:
        """Let this leader write from now on, and no other."""
        await _in_thread(lambda: self._admit(epoch))

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
        await _in_thread(lambda: self._write(writes, epoch))

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        # What a process before this one wrote was perhaps not synced.
        new = [key for key in keys if key not in self._entered]
        earlier = await _in_thread(partial(self._kept, new)) if new else {}
        parts = [keys[start::SYNC_THREADS] for start in range(min(SYNC_THREADS, len(keys)))]
        await asyncio.gather(*(_in_thread(partial(self._sync, part, earlier)) for part in parts))

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        data = b""
        while True:
            at, left = offset + len(data), bytes_max - len(data)
            found, is_end = await _in_thread(partial(self.read_here, key, at, left))
            data += found
            if is_end or self._bucket is None:
                return data
            number, begin = divmod(at + len(found), self._segment_bytes)
            count = min(left - len(found), self._segment_bytes - begin)
            name = sealed_name(Segment(key, number, 0))
            found = await self._bucket.read(name, begin, count)
            if not found and await self._bucket.has_later(name, number):
                found = _missing(count)  # a segment that is missing between others is a gap
            data += found
            if len(found) < count:
                return data

    async def size(self, key: OutputKey) -> int:
        """Bytes kept here; 0 if there is no such output."""
        return (await self.sizes([key]))[0]

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        return await _in_thread(lambda: self._sizes(keys))

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        """Up to so many time stamps from a number on; fewer if there are no more."""
        return unpacked(
            await self._read_times(key, first * TIMESTAMP_BYTES, count * TIMESTAMP_BYTES)
        )

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        """How many of the first ``count`` time stamps are before a place."""
        found = await _in_thread(lambda: self._partition(key, count, is_before))
        if found is not None or self._bucket is None:
            return found or 0
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            each = await self.timestamps(key, middle, 1)
            if each and is_before(each[0]):
                low = middle + 1
            else:
                high = middle
        return low

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0, *, epoch: int) -> None:
        """Drop the bytes beyond ``size``, and the time stamps beyond so many."""

        def work() -> None:
            self._check(epoch)
            for kept in self._kept([key])[key]:
                if kept.begin and kept.begin >= size:
                    kept.path.unlink(missing_ok=True)
                else:
                    _truncate(kept.path, size - kept.begin)
            _truncate(self.times_path(key), timestamps * TIMESTAMP_BYTES)

        await _in_thread(work)

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        await _in_thread(lambda: self._remove(keys))
        if self._bucket is not None:
            for key in keys:
                await self._bucket.remove(f"{key.task_id}/{key.attempt}", f"{key.rank}.")

    async def seal(self, segments: Sequence[Segment], *, epoch: int) -> list[int | None]:
        """Compress these bytes; returns the size of each on disk."""
        return await _in_thread(lambda: self._seal(segments, epoch))

    async def release(self, sealed: Mapping[OutputKey, int], *, complete: bool, epoch: int) -> None:
        """Remove what was written of the bytes before an offset; all of it is sealed."""
        await _in_thread(lambda: self._release(sealed, complete, epoch))

    async def upload(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """Return when the bucket has confirmed these sealed segments."""
        assert self._bucket is not None
        await _in_thread(lambda: self._check(epoch))
        for segment in segments:
            name = sealed_name(segment)
            try:
                UPLOADED.inc(await self._bucket.put(name, self._logs_dir / name))
            except FileNotFoundError:
                # Sent by a process that died before it could note that, or lost.
                if not await self._bucket.size(name):
                    log("log_collector").error("a sealed segment is lost", name=name)
                    DAMAGED.inc(segment.size)
            except OSError as error:
                raise ArchiveError(str(error)) from error

    async def drop_uploaded(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """Remove segments here that the bucket has."""

        def work() -> None:
            self._check(epoch)
            for segment in segments:
                self.sealed_path(segment.key, segment.number).unlink(missing_ok=True)
            for folder in {self._folder(segment.key) for segment in segments}:
                _remove_if_empty(folder)
                _remove_if_empty(folder.parent)

        await _in_thread(work)

    def sealed_size(self, key: OutputKey, number: int) -> int | None:
        """How many plain bytes a sealed segment of this folder has; None if it has none."""
        return self._sealed.size(self.sealed_path(key, number))

    def part(self, key: OutputKey, number: int, begin: int, bytes_max: int) -> bytes:
        """Bytes of one segment, as written or sealed, as far as this folder has them."""
        if number == TIMES:
            return self._read_times_here(key, begin, bytes_max) or b""
        return self._read_piece(key, number * self._segment_bytes + begin, bytes_max) or b""

    def read_here(self, key: OutputKey, offset: int, bytes_max: int) -> tuple[bytes, bool]:
        """What this folder has of a range, and whether that is all: False if it ends with a segment
        of which nothing is here."""
        data: list[bytes] = []
        at, end = offset, offset + bytes_max
        while at < end:
            count = min(end, at - at % self._segment_bytes + self._segment_bytes) - at
            piece = self._read_piece(key, at, count)
            short = count - len(piece or b"")
            if short and self._sizes([key])[0] > at + count - short:
                # There are bytes behind it, so these are missing; unless they are in the bucket.
                if piece is None and self._bucket is not None:
                    return b"".join(data), False
                piece, short = (piece or b"") + _missing(short), 0
            if piece is None:
                return b"".join(data), False
            data.append(piece)
            at += len(piece)
            if short:
                break
        return b"".join(data), True

    def _read_piece(self, key: OutputKey, offset: int, count: int) -> bytes | None:
        """A range within one segment; None if nothing of the segment is here."""
        number, begin = divmod(offset, self._segment_bytes)
        for _ in range(2):
            sealed = self._sealed.read(self.sealed_path(key, number), begin, count)
            if sealed is not None:
                return sealed
            path, first = self._as_written(key, number)
            found = _read(path, offset - first, count)
            if found is not None:
                return found
            # Between the two attempts it may have been sealed, and what was written removed.
        return None

    def _as_written(self, key: OutputKey, number: int) -> tuple[str, int]:
        """The file for the bytes of a segment as written, and the offset of its first byte."""
        first, begin = self._place(key), number * self._segment_bytes
        if number == 0 or _size(first) > begin:
            return first, 0
        return self._place(key, number), begin

    async def _read_times(self, key: OutputKey, at: int, count: int) -> bytes:
        found = await _in_thread(lambda: self._read_times_here(key, at, count))
        if found is None and self._bucket is not None:
            found = await self._bucket.read(sealed_name(Segment(key, TIMES, 0)), at, count)
        return found or b""

    def _read_times_here(self, key: OutputKey, at: int, count: int) -> bytes | None:
        for _ in range(2):
            found = self._sealed.read(self.sealed_path(key, TIMES), at, count)
            if found is None:
                found = _read(self.times_path(key), at, count)
            if found is not None:
                return found
        return None

    def _folder(self, key: OutputKey) -> Path:
        return Path(f"{self._root}/{key.task_id}/{key.attempt}")

    def _place(self, key: OutputKey, number: int = 0) -> str:
        return f"{self._root}/{key.task_id}/{key.attempt}/{file_name(key.rank, number)}"

    def _admit(self, epoch: int) -> None:
        path = self._logs_dir / WRITER
        self._logs_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        new = path.with_name(f"{WRITER}.{epoch}")
        new.write_text(str(epoch))
        new.replace(path)

    def _check(self, epoch: int) -> None:
        text = _read(self._logs_dir / WRITER, 0, WRITER_BYTES_MAX) or b""
        writer = int(text) if text.isdigit() else 0
        if writer != epoch:
            raise NotWriterError(epoch, writer)

    def _write(self, writes: Sequence[Write], epoch: int) -> None:
        self._check(epoch)
        unchecked = SPACE_CHECK_BYTES
        for write in writes:
            written: list[str] = []
            unchecked += len(write.data) + TIMESTAMP_BYTES * len(write.timestamps)
            check_space = unchecked >= SPACE_CHECK_BYTES
            if write.timestamps:
                times, at = self._place(write.key, TIMES), write.number * TIMESTAMP_BYTES
                _put(times, at, packed(write.timestamps), check_space=check_space)
                written.append(times)
            for at, data in _cut(write.offset, write.data, self._segment_bytes):
                path, begin = self._as_written(write.key, at // self._segment_bytes)
                if begin and at > begin and not os.path.exists(path):  # noqa: PTH110 - the hot path
                    # Only a process that does not lead any more can be so far behind.
                    raise ArchiveError(f"{path} was sealed and released")
                _put(path, at - begin, data, check_space=check_space)
                written.append(path)
            if check_space:
                unchecked = 0
            with self._lock:
                self._unsynced.setdefault(write.key, set()).update(written)

    def _sync(self, keys: Sequence[OutputKey], earlier: Mapping[OutputKey, list[Kept]]) -> None:
        """Sync outputs; of those in ``earlier`` also these files and the folder entries."""
        folders: set[Path] = set()
        for key in keys:
            with self._lock:
                paths = self._unsynced.pop(key, set())
            files = set(paths)
            if key in earlier:
                files |= {str(kept.path) for kept in earlier[key]}
                files.add(self._place(key, TIMES))
            try:
                for path in files:
                    _sync_if_there(path)
            except OSError:
                with self._lock:
                    self._unsynced.setdefault(key, set()).update(paths)
                raise
            has_new_file = any(path.rpartition("/")[2].count(".") > 1 for path in paths)
            if key in earlier or has_new_file:
                folders.add(self._folder(key))
        folders = {folder for folder in folders if folder.exists()}
        for folder in {*folders, *(folder.parent for folder in folders)}:
            _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY)
        if folders:
            _sync_path(self._logs_dir, os.O_RDONLY | os.O_DIRECTORY)
        self._entered.update(keys)

    def _sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        found = self._kept(keys)
        return [max((kept.end for kept in found[key]), default=0) for key in keys]

    def _kept(
        self, keys: Sequence[OutputKey], *, sealed: bool = True
    ) -> dict[OutputKey, list[Kept]]:
        """The files that have bytes of these outputs: one listing of each attempt's folder."""
        by_rank = {(self._folder(key), str(key.rank)): key for key in keys}
        found: dict[OutputKey, list[Kept]] = {key: [] for key in keys}
        for folder in {folder for folder, _ in by_rank}:
            for entry in _entries(folder):
                rank, *more = entry.name.split(".")
                key = by_rank.get((folder, rank))
                if key is None or "log" not in more[:2] or more[-1] not in ("log", "zst"):
                    continue
                number = int(more[0]) if more[0].isdigit() else 0
                path = folder / entry.name
                size = _size(path) if more[-1] == "log" else -1
                if size < 0 and not sealed:
                    continue
                found[key].append(Kept(path, number * self._segment_bytes, size))
        # How long a sealed one is says its table; all but the last are whole.
        return {key: self._measured(each) for key, each in found.items()}

    def _measured(self, found: Sequence[Kept]) -> list[Kept]:
        last = max((kept.begin for kept in found), default=0)
        return [
            kept
            if kept.size >= 0
            else Kept(
                kept.path,
                kept.begin,
                self._segment_bytes if kept.begin < last else self._sealed.size(kept.path) or 0,
            )
            for kept in found
        ]

    def _partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int | None:
        sealed = self._sealed.size(self.sealed_path(key, TIMES))
        size = _size(self.times_path(key)) if sealed is None else sealed
        if sealed is None and not size:
            return None

        def is_after(index: int) -> bool:
            data = self._read_times_here(key, index * TIMESTAMP_BYTES, TIMESTAMP_BYTES) or b""
            return not is_before(unpacked(data)[0])

        return bisect_left(range(min(count, size // TIMESTAMP_BYTES)), x=True, key=is_after)

    def _seal(self, segments: Sequence[Segment], epoch: int) -> list[int | None]:
        sizes: list[int | None] = []
        for segment in segments:
            self._check(epoch)
            path = self.sealed_path(segment.key, segment.number)
            if self.sealed_size(segment.key, segment.number) == segment.size:
                sizes.append(_size(path))  # a process that died afterwards did it
                continue
            if problem := spare_problem(str(self._logs_dir)):
                raise OSError(errno.ENOSPC, problem)
            read = self._reader(segment)
            if read is None:
                sizes.append(None)
                continue
            sizes.append(write_sealed(path, read, lambda: self._check(epoch), FILE_MODE))
            SEALED.inc(segment.size)
        done = [each for each, size in zip(segments, sizes, strict=True) if size is not None]
        for folder in {self._folder(segment.key) for segment in done}:
            _sync_path(folder, os.O_RDONLY | os.O_DIRECTORY)
        return sizes

    def _reader(self, segment: Segment) -> Callable[[int], bytes] | None:
        """Reads a segment as written, and replaces what is missing of it; None if all is."""
        if segment.number == TIMES:
            path, begin, offset = self.times_path(segment.key), 0, 0
        else:
            path, begin = self._as_written(segment.key, segment.number)
            offset = segment.number * self._segment_bytes - begin
        if segment.size and _size(path) <= offset:
            return None
        done = 0

        def read(count: int) -> bytes:
            nonlocal done
            count = min(count, segment.size - done)
            try:
                data = _read(path, offset + done, count) or b""
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = b""
            if len(data) < count:
                log("log_collector").error("kept output is damaged", path=str(path))
                data += _missing(count - len(data)) if segment.number != TIMES else b""
            done += len(data)
            return data

        return read

    def _release(self, sealed: Mapping[OutputKey, int], complete: bool, epoch: int) -> None:
        self._check(epoch)
        found = self._kept(list(sealed), sealed=False)
        for key, end in sealed.items():
            for kept in found[key]:
                if kept.end <= end and (complete or end - kept.begin >= self._segment_bytes):
                    kept.path.unlink(missing_ok=True)
            if complete:
                self.times_path(key).unlink(missing_ok=True)
                self._entered.discard(key)
                with self._lock:
                    self._unsynced.pop(key, None)

    def _remove(self, keys: Sequence[OutputKey]) -> None:
        by_rank = {(self._folder(key), str(key.rank)) for key in keys}
        folders = {folder for folder, _ in by_rank}
        for folder in folders:
            for entry in _entries(folder):
                if (folder, entry.name.partition(".")[0]) in by_rank:
                    (folder / entry.name).unlink(missing_ok=True)
        self._entered.difference_update(keys)
        with self._lock:
            for key in keys:
                self._unsynced.pop(key, None)
        for folder in folders:
            _remove_if_empty(folder)
            _remove_if_empty(folder.parent)


def _missing(count: int) -> bytes:
    DAMAGED.inc(count)
    return seekable.filler(count)


def _cut(offset: int, data: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a write by the segments that they belong to."""
    at = 0
    while at < len(data):
        end = min(len(data), at + size - (offset + at) % size)
        yield offset + at, data[at:end]
        at = end


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _put(path: str, at: int, data: bytes, *, check_space: bool) -> None:
    try:
        number = os.open(path, _WRITE, FILE_MODE)
    except FileNotFoundError:
        Path(path).parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        number = os.open(path, _WRITE, FILE_MODE)
    try:
        if check_space and (problem := spare_problem(number)):
            # The output stays with its source, and is written when there is space again.
            raise OSError(errno.ENOSPC, problem)
        done = os.pwrite(number, data, at) if data else 0
        while done < len(data):
            done += os.pwrite(number, memoryview(data)[done:], at + done)
    finally:
        os.close(number)


def _read(path: Path | str, offset: int, bytes_max: int) -> bytes | None:
    try:
        number = os.open(path, _READ)
    except FileNotFoundError:
        return None
    try:
        return os.pread(number, bytes_max, offset)
    finally:
        os.close(number)


def _size(path: Path | str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - the hot path: no Path object
    except FileNotFoundError:
        return 0


def _truncate(path: Path, size: int) -> None:
    if _size(path) > max(0, size):
        os.truncate(path, max(0, size))


def _sync_if_there(path: str) -> None:
    try:
        _sync_path(path, os.O_WRONLY)
    except FileNotFoundError:
        return  # an output without a byte has no file, and an old one perhaps no time stamps


def _sync_path(path: Path | str, flags: int) -> None:
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
