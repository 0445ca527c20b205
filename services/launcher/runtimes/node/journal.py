"""The supervisor's durable records: an append-only file, which a separate thread writes.

Each line is a checksum (CRC-32, eight hex digits), a space and a JSON object. ``append`` returns at
once, so that a slow disk never makes the supervisor silent; the record counts when ``then`` is
called without an error. Records that wait for the disk together are written and synced together,
in their order.

If the process dies in a write, the file ends with a torn line. Nothing depends on it yet, and it is
cut off. A damaged line before good ones is a fault of the disk: it is set apart in
``journal.damaged``, ``damaged`` counts it, and the lines around it stay valid. The file is
rewritten, without what was forgotten, when the supervisor starts and when it has grown.
"""

from __future__ import annotations

import _thread
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from services.launcher.runtimes.node.supervisor_log import report

Record = Mapping[str, Any]
# Called in the supervisor's own thread: None once the records are on disk, or why they are not.
Then = Callable[[OSError | None], None]
REWRITE_BYTES_MIN = 1 << 20
DAMAGED_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class _Job:
    """Bytes to append, or (``fresh``) to replace the file by."""

    data: bytes
    then: Then
    fresh: bool = False


class Journal:
    """The file, open for appending. ``wake`` is called in the other thread when ``poll`` has
    something to do."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = f"{folder}/journal"
        self._fd = -1
        self._size = self._rewritten_bytes = 0
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._done: SimpleQueue[OSError | None] = SimpleQueue()
        # Jobs that the thread has not answered yet, oldest first; only the main thread knows them.
        self._waiting: list[_Job] = []
        self._has_thread = False
        self.wake: Callable[[], None] = lambda: None
        self.records: list[Record] = []
        # The number of lines that a fault of the disk has damaged.
        self.damaged = 0
        # Whether the end was cut off.
        self.torn = False
        self._replay()

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the disk."""
        return not self._waiting

    @property
    def has_grown(self) -> bool:
        """Much longer than when it was last rewritten."""
        return self._size > max(REWRITE_BYTES_MIN, 2 * self._rewritten_bytes)

    def begin(self, records: Iterable[Record]) -> None:
        """Rewrite the file before anything else happens. On a full disk the old file goes on,
        without its torn end."""
        data = b"".join(_line(record) for record in records)
        try:
            self._replace(data)
        except OSError as error:
            report(f"cannot rewrite the journal, so it stays as it is: {error}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            os.ftruncate(self._fd, self._size)

    def append(self, *records: Record, then: Then) -> None:
        """Order records to be written; ``then`` is called by ``poll`` when they are on disk."""
        self._order(_Job(b"".join(_line(record) for record in records), then))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Order the file to be replaced by these records, at once or not at all. What waits for
        the disk now may not be among them yet, so it is written into the new file, too."""
        waiting = b"".join(job.data for job in self._waiting if not job.fresh)
        data = b"".join(_line(record) for record in records) + waiting
        self._order(_Job(data, _report_failure, fresh=True))

    def poll(self) -> None:
        """Call ``then`` of what the disk has answered."""
        while not self._done.empty():
            error, job = self._done.get(), self._waiting.pop(0)
            job.then(error)

    def _order(self, job: _Job) -> None:
        if not self._has_thread:
            _thread.start_new_thread(self._work, ())
            self._has_thread = True
        self._waiting.append(job)
        self._jobs.put(job)

    # In the other thread, which alone touches the file once it runs

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            while not self._jobs.empty():
                jobs.append(self._jobs.get())
            while jobs:
                count = next((n for n, job in enumerate(jobs) if job.fresh), len(jobs))
                error = self._attempt(jobs[: count or 1])
                for _ in jobs[: count or 1]:
                    self._done.put(error)
                del jobs[: count or 1]
            self.wake()

    def _attempt(self, jobs: list[_Job]) -> OSError | None:
        """Carry out one replacement, or appends that belong together."""
        try:
            if jobs[0].fresh:
                self._replace(jobs[0].data)
            else:
                self._append(b"".join(job.data for job in jobs))
        except OSError as error:
            return error
        except Exception as error:  # noqa: BLE001 - every waiting order needs an answer
            return OSError(f"{type(error).__name__}: {error}")
        return None

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if os.fstat(self._fd).st_size != self._size:
            # Half a line of a write that failed must not stand in front of the next record.
            os.ftruncate(self._fd, self._size)
        try:
            _write(self._fd, data)
            os.fdatasync(self._fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _replace(self, data: bytes) -> None:
        fresh = f"{self._path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        try:
            _write(fd, data)
            os.fdatasync(fd)
            os.rename(fresh, self._path)  # noqa: PTH104 - small imports
        except OSError:
            os.close(fd)
            raise
        old, self._fd = self._fd, fd
        self._size = self._rewritten_bytes = len(data)
        if old >= 0:
            os.close(old)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    # At the start

    def _replay(self) -> None:
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - as above
                data = file.read()
        except FileNotFoundError:
            return
        # What stands behind the last line end was cut off.
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
        found = [_parse(line) for line in lines]
        while found and found[-1] is None:
            found.pop()
        self._size = sum(len(line) for line in lines[: len(found)])
        self.torn = self._size < len(data)
        self.records = [record for record in found if record is not None]
        bad = [line for line, record in zip(lines, found, strict=False) if record is None]
        self.damaged = len(bad)
        if bad:
            report(f"{len(bad)} damaged lines of the journal are set apart in journal.damaged")
            self._set_apart(b"".join(bad))

    def _set_apart(self, data: bytes) -> None:
        """Keep damaged lines for people; nothing depends on that."""
        try:
            with open(f"{self._path}.damaged", "ab") as file:  # noqa: PTH123 - as above
                os.fchmod(file.fileno(), 0o600)
                file.write(data[: max(0, DAMAGED_BYTES_MAX - file.tell())])
        except OSError as error:
            report(f"cannot set damaged lines apart: {error}")


def commanding_epoch(path: str) -> int:
    """The epoch that commands the node with this journal, as its supervisor remembers it; 0: none.
    The supervisor may live and write. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        found = [_parse(line + b"\n") for line in file.read().split(b"\n")[:-1]]
    return max(
        (record["epoch"] for record in found if record and record["t"] == "epoch"), default=0
    )


def take_lock(path: str, holder: str) -> int | None:
    """The lock of a folder as an open file, or None if another process holds it. It is gone with
    the process, however that ends. ``holder`` is written into it, so that others can find us."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    # In place, because on a full disk an emptied file may stay empty: a holder has about the same
    # length each time, and what is longer than that is padding.
    text = holder.encode()
    size = os.fstat(fd).st_size
    os.pwrite(fd, text.ljust(size), 0)
    return fd


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> Record | None:
    """The record of one line; None if it is damaged."""
    text = line[9:-1] if line[8:9] == b" " else b""
    record: Any
    try:
        if line.startswith(b"{"):
            # As written before lines had checksums.
            record = json.loads(line)
        elif int(line[:8], 16) == zlib.crc32(text):
            record = json.loads(text)
        else:
            return None
    except ValueError:
        return None
    if not isinstance(record, dict) or "t" not in record:
        return None
    return record  # pyright: ignore[reportUnknownVariableType] - as written by ``_line``


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _report_failure(error: OSError | None) -> None:
    if error is not None:
        report(f"cannot rewrite the journal, so it goes on growing: {error}")
