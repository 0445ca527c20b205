"""The port of the archive of kept output. Adapters: ``files`` (with a ``bucket`` or without one),
``memory``.

Each output has its bytes, and its time stamps in the order of their offsets and times. Writes
name the offset and the number of the first time stamp, so a write that is repeated changes nothing.

Bytes that never change again are *sealed*: compressed, a segment of ``segment_bytes`` at a time (an
output's last one is shorter), the time stamps as a segment of their own. The caller makes a segment
count in its database before it releases the bytes as they were written. Where there is a bucket,
segments are uploaded to it, and removed here once that counts too. Reading finds the bytes wherever
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


# The number of the segment that has the time stamps of an output.
TIMES = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of an output that never change again: those from ``number`` times the archive's
    ``segment_bytes`` on. With the number ``TIMES``: its time stamps, 16 bytes each."""

    key: OutputKey
    number: int
    size: int


class ArchiveError(Exception):
    """It could not be done now (disk full, no rights); nothing counts as kept."""


class NotWriterError(ArchiveError):
    """Another leader writes to this archive now."""

    def __init__(self, epoch: int, writer: int) -> None:
        super().__init__(f"the leader of epoch {writer} writes here, not that of epoch {epoch}")


class UnreachableError(ArchiveError):
    """The bucket does not answer, or refuses. What is kept here can be read all the same."""


class Archive(Protocol):
    """Kept outputs by key. Every method raises ArchiveError when the disk refuses, and what changes
    an output raises NotWriterError if a leader of another epoch writes: two leaders may have read
    the same output at other moments, and so keep it with other time stamps."""

    @property
    def segment_bytes(self) -> int:
        """The size of every segment but the last of an output. It never changes."""
        ...

    @property
    def has_bucket(self) -> bool:
        """Whether segments are uploaded."""
        ...

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

    async def seal(self, segments: Sequence[Segment], *, epoch: int) -> list[int | None]:
        """Compress these bytes, which are synced and recorded; returns the size of each on disk,
        None for one of which nothing is there: its disk may not be mounted.

        A segment is on disk for certain then, and what was written is still there. Repeating it
        changes nothing. Bytes that cannot be read are replaced by a line that reports them.
        """
        ...

    async def release(self, sealed: Mapping[OutputKey, int], *, complete: bool, epoch: int) -> None:
        """Remove what was written of the bytes before an offset, for each output; of a complete one
        also the time stamps. All of it must be sealed."""
        ...

    async def upload(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """Return when the bucket has confirmed these sealed segments; UnreachableError if it does
        not take them. One that is neither here nor there is lost, which is reported."""
        ...

    async def drop_uploaded(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """Remove segments here that the bucket has."""
        ...
