"""Where kept output lies, as the collector and the readers see it. Adapters: ``files``, ``memory``.

Writes name their offset, so a write that is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.log_collector.domain import OutputKey


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes to keep at an offset."""

    key: OutputKey
    offset: int
    data: bytes


class ArchiveError(Exception):
    """It could not be done now (disk full, no rights); nothing counts as kept."""


class Archive(Protocol):
    """Kept outputs by key. Every method raises ArchiveError when the disk refuses."""

    async def write(self, writes: Sequence[Write]) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
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

    async def truncate(self, key: OutputKey, size: int) -> None:
        """Drop what is beyond ``size``."""
        ...

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        ...
