"""What a supervisor must not forget: an append-only file of JSON lines, synced before it counts.

A last line that was cut off by a crash was never acted on, and is dropped. The file is written
anew, without what was forgotten, when the supervisor starts and when it has grown.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

Record = Mapping[str, Any]
REWRITE_BYTES_MIN = 1 << 20


class Journal:
    """The file, open for appending."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = f"{folder}/journal"
        self._fd = -1
        self.records: list[Record] = _replay(self._path)
        self._rewritten_bytes = 0

    def append(self, *records: Record) -> None:
        """Write records and sync them once; they count when this returns."""
        view = memoryview(b"".join(_line(record) for record in records))
        size = os.fstat(self._fd).st_size
        try:
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            # Half a line must not stand in front of the next record.
            os.ftruncate(self._fd, size)
            raise

    @property
    def has_grown(self) -> bool:
        """Much longer than when it was last written anew."""
        size = os.fstat(self._fd).st_size
        return size > max(REWRITE_BYTES_MIN, 2 * self._rewritten_bytes)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file by these records, at once or not at all."""
        fresh = f"{self._path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        old, self._fd = self._fd, fd
        self.append(*records)
        self._rewritten_bytes = os.fstat(fd).st_size
        os.rename(fresh, self._path)  # noqa: PTH104 - small imports
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        if old >= 0:
            os.close(old)


def take_lock(folder: str, holder: str) -> int | None:
    """The folder's lock as an open file, or None if another process holds it. It is gone with
    the process, however that ends. ``holder`` is written into it, for who has to find us."""
    fd = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    os.ftruncate(fd, 0)
    os.write(fd, holder.encode())
    return fd


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _replay(path: str) -> list[Record]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as above
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    # What stands behind the last line end was cut off.
    return [json.loads(line) for line in lines[:-1]]
