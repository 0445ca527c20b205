"""Reads the process runtime's output files: one for each rank, with stdout and stderr merged.

``main.py`` uses it. A call of ``read`` costs one thread hop, and one ``stat`` for each output that
has nothing new.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from services.log_collector.domain import Address, Timestamp, datetime_of
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored

NAME = "output.log"
# The answer of nearly every file at nearly every read.
NOTHING_NEW = ReadResult()


def output_path(runs_dir: Path, address: Address) -> Path:
    """The path at which a node's supervisor writes a rank's output."""
    return Path(_folder_of(str(runs_dir), address), NAME)


def _folder_of(runs_dir: str, address: Address) -> str:
    """The folder of that file; its parts are joined as text, because each pass needs them all."""
    key = address.key
    return f"{runs_dir}/{address.node_id}/runs/{key.task_id}.{key.attempt}/{key.rank}"


class FileSource:
    """Reads output files below one folder."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = str(runs_dir)

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return no tasks: this source needs no background work."""
        return ()

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        """Answer the requests in order; None for those left when ``bytes_max`` was reached."""
        return await asyncio.to_thread(self._read_all, requests, bytes_max)

    async def stored(self, stored: Sequence[Stored]) -> None:
        """Do nothing: the process runtime removes the files."""

    def _read_all(self, requests: Sequence[ReadRequest], bytes_max: int) -> list[ReadResult | None]:
        answers: list[ReadResult | None] = []
        left = bytes_max
        for request in requests:
            if left <= 0:
                answers.append(None)
                continue
            result = _read_one(_folder_of(self._runs_dir, request.address), request, left)
            left -= len(result.data)
            answers.append(result)
        return answers


def _read_one(path: str, request: ReadRequest, bytes_max: int) -> ReadResult:
    try:
        # A cheap check that ends most reads; nothing else depends on it.
        size = os.stat(f"{path}/{NAME}").st_size  # noqa: PTH116 - the hot path: no Path object
        if size == request.offset:
            return NOTHING_NEW
        if size < request.offset:
            return ReadResult(
                problem=f"its file was cut to {size} of {request.offset} bytes", lost=True
            )
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _read_in(folder, request.offset, min(request.bytes_max, bytes_max))
        finally:
            os.close(folder)
    except (FileNotFoundError, NotADirectoryError):
        if request.offset:
            return ReadResult(absent=True, problem="its file was removed", lost=True)
        return ReadResult(absent=True)
    except OSError as error:
        return ReadResult(problem=error.strerror or str(error))


def _read_in(folder: int, offset: int, bytes_max: int) -> ReadResult:
    """Read the output file of a folder that the task itself may write to.

    A link there could name a file that the task may not read, and a pipe would block: only a
    regular file with a single hard link is read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(NAME, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return ReadResult(problem="it is not a plain file of its own")
        # No more than is there: memory for a whole ``bytes_max`` costs more than all the rest.
        data = os.pread(descriptor, max(0, min(bytes_max, status.st_size - offset)), offset)
        # These bytes were written at the time of the last write or before it.
        written_at = datetime_of(status.st_mtime_ns // 1000)
        return ReadResult(data, timestamps=(Timestamp(0, written_at),))
    finally:
        os.close(descriptor)
