"""Kept outputs in memory, for the simulation. A crash forgets what was not synced."""

from __future__ import annotations

from collections.abc import Sequence

from services.log_collector.archives.port import Write
from services.log_collector.domain import OutputKey


class MemoryArchive:
    """Kept outputs by key: as written, and as a disk would have them after a crash."""

    def __init__(self) -> None:
        self._written: dict[OutputKey, bytearray] = {}
        self._synced: dict[OutputKey, bytes] = {}

    def crash(self, *, torn: bool = False) -> None:
        """What was not synced is gone; or, ``torn``, there are zeros in its place, as after a power
        failure that kept a file's length and not its bytes."""
        before, self._written = self._written, {}
        for key, data in before.items():
            synced = self._synced.get(key, b"")
            zeros = bytes(max(0, len(data) - len(synced))) if torn else b""
            self._written[key] = bytearray(synced + zeros)

    async def write(self, writes: Sequence[Write]) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
        for write in writes:
            kept = self._written.setdefault(write.key, bytearray())
            kept.extend(bytes(max(0, write.offset - len(kept))))
            kept[write.offset : write.offset + len(write.data)] = write.data

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        self._synced.update({key: bytes(self._written.get(key, b"")) for key in keys})

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        return bytes(self._written.get(key, bytearray())[offset : offset + bytes_max])

    async def size(self, key: OutputKey) -> int:
        """Bytes kept; 0 if there is no such output."""
        return len(self._written.get(key, b""))

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        return [len(self._written.get(key, b"")) for key in keys]

    async def truncate(self, key: OutputKey, size: int) -> None:
        """Drop what is beyond ``size``."""
        del self._written.get(key, bytearray())[size:]

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        for key in keys:
            self._written.pop(key, None)
            self._synced.pop(key, None)
