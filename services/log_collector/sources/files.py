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

from libs.contracts.ids import RunId, TaskId
from services.log_collector.domain import Address, Timestamp, datetime_of
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored


def output_path(runs_dir: Path, address: Address) -> Path:
    """The path at which a node's supervisor writes a rank's output."""
    run_id = RunId(TaskId(address.key.task_id), address.key.attempt)
    return runs_dir / address.node_id / "runs" / str(run_id) / str(address.key.rank) / "output.log"


class FileSource:
    """Reads output files below one folder."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir

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
            result = _read_one(output_path(self._runs_dir, request.address), request, left)
            left -= len(result.data)
            answers.append(result)
        return answers


def _read_one(path: Path, request: ReadRequest, bytes_max: int) -> ReadResult:
    try:
        # A cheap check that ends most reads; nothing else depends on it.
        size = os.stat(path).st_size  # noqa: PTH116 - the hot path: no Path object
        if size == request.offset:
            return ReadResult()
        if size < request.offset:
            return ReadResult(
                problem=f"its file was cut to {size} of {request.offset} bytes", lost=True
            )
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _read_in(folder, path.name, request.offset, min(request.bytes_max, bytes_max))
        finally:
            os.close(folder)
    except (FileNotFoundError, NotADirectoryError):
        if request.offset:
            return ReadResult(absent=True, problem="its file was removed", lost=True)
        return ReadResult(absent=True)
    except OSError as error:
        return ReadResult(problem=error.strerror or str(error))


def _read_in(folder: int, name: str, offset: int, bytes_max: int) -> ReadResult:
    """Read one file of a folder that the task itself may write to.

    A link there could name a file that the task may not read, and a pipe would block: only a
    regular file with a single hard link is read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return ReadResult(problem="it is not a plain file of its own")
        data = os.pread(descriptor, bytes_max, offset)
        # These bytes were written at the time of the last write or before it.
        written_at = datetime_of(os.fstat(descriptor).st_mtime_ns // 1000)
        return ReadResult(data, timestamps=(Timestamp(0, written_at),))
    finally:
        os.close(descriptor)
