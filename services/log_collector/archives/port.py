"""The port of the archive of kept output. Adapters: ``files``, ``memory``.

Each output has its bytes, and its time stamps in the order of their offsets and times. Writes
name the offset and the number of the first time stamp, so a write that is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.log_collector.domain import OutputKey, Timestamp


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes to keep at an offset, and when they were written."""

    key: OutputKey
    offset: int
    data: bytes
    timestamps: Sequence[Timestamp] = ()
    # Of the first of these time stamps, counted from 0 through the output.
    number: int = 0


class ArchiveError(Exception):
    """It could not be done now (disk full, no rights); nothing counts as kept."""


class NotWriterError(ArchiveError):
    """Another leader writes to this archive now."""

    def __init__(self, epoch: int, writer: int) -> None:
        super().__init__(f"the leader of epoch {writer} writes here, not that of epoch {epoch}")


class Archive(Protocol):
    """Kept outputs by key. Every method raises ArchiveError when the disk refuses, and what changes
    an output raises NotWriterError if a leader of another epoch writes: two leaders may have read
    the same output at other moments, and so keep it with other time stamps."""

    async def admit(self, epoch: int) -> None:
        """Let this leader write from now on, and no other. Epoch 0 writes where nobody ever led."""
        ...

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``.

        The time stamps come before the bytes: a process that dies in between leaves no byte
        without its time.
        """
        ...

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        ...

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        ...

    async def size(self, key: OutputKey) -> int:
        """Bytes kept; 0 if there is no such output."""
        ...

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        ...

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        """Up to so many time stamps from a number on; fewer if there are no more."""
        ...

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        """How many of the first ``count`` time stamps are before a place. They are searched as
        sorted: those before it come first."""
        ...

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0, *, epoch: int) -> None:
        """Drop the bytes beyond ``size``, and the time stamps beyond so many."""
        ...

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        ...
