"""Kept outputs in memory, for the simulation. A crash forgets what was not synced."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from services.log_collector.archives.port import TIMES, NotWriterError, Segment, Write
from services.log_collector.domain import (
    TIMESTAMP_BYTES,
    OutputKey,
    Timestamp,
    packed,
    unpacked,
)


class MemoryArchive:
    """Kept outputs by key: as written, and as a disk would have them after a crash."""

    def __init__(self, segment_bytes: int = 65_536) -> None:
        self._segment_bytes = segment_bytes
        self._written: dict[OutputKey, bytearray] = {}
        self._synced: dict[OutputKey, bytes] = {}
        # The same of their time stamps.
        self._times: dict[OutputKey, bytearray] = {}
        self._times_synced: dict[OutputKey, bytes] = {}
        # Segments that are on disk for certain, by output and number.
        self._sealed: dict[OutputKey, dict[int, bytes]] = {}
        # Of so many bytes only the segments are left; and outputs whose time stamps are sealed.
        self._released: dict[OutputKey, int] = {}
        self._times_released: set[OutputKey] = set()
        self._writer = 0

    @property
    def segment_bytes(self) -> int:
        """The size of every segment but the last of an output."""
        return self._segment_bytes

    @property
    def has_bucket(self) -> bool:
        """There is none."""
        return False

    async def admit(self, epoch: int) -> None:
        """Let this leader write from now on, and no other."""
        self._writer = epoch

    def _check(self, epoch: int) -> None:
        if epoch != self._writer:
            raise NotWriterError(epoch, self._writer)

    def crash(self, *, torn: bool = False) -> None:
        """What was not synced is gone; or, ``torn``, there are zeros in its place, as after a power
        failure that kept a file's length and not its bytes."""
        self._written = _after_crash(self._written, self._synced, torn=torn)
        self._times = _after_crash(self._times, self._times_synced, torn=torn)
        for key in self._released:
            self._forget_released(key)

    async def write(self, writes: Sequence[Write], *, epoch: int) -> None:
        """Write the pieces; they may be lost in a crash until ``sync``."""
        self._check(epoch)
        for write in writes:
            at = write.number * TIMESTAMP_BYTES
            _put(self._times.setdefault(write.key, bytearray()), at, packed(write.timestamps))
            _put(self._written.setdefault(write.key, bytearray()), write.offset, write.data)

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        """Return when everything written to these outputs is on disk."""
        for key in keys:
            self._synced[key] = bytes(self._written.get(key, b""))
            self._times_synced[key] = bytes(self._times.get(key, b""))

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        """Up to so many bytes from an offset on; empty if there are none."""
        return bytes(self._written.get(key, bytearray())[offset : offset + bytes_max])

    async def size(self, key: OutputKey) -> int:
        """Bytes kept; 0 if there is no such output."""
        return len(self._written.get(key, b""))

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        """The same of several outputs, in their order."""
        return [len(self._written.get(key, b"")) for key in keys]

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        """Up to so many time stamps from a number on; fewer if there are no more."""
        begin, end = first * TIMESTAMP_BYTES, (first + count) * TIMESTAMP_BYTES
        return unpacked(bytes(self._times.get(key, b"")[begin:end]))

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        """How many of the first ``count`` time stamps are before a place."""
        found = await self.timestamps(key, 0, count)
        return bisect_left(found, x=True, key=lambda each: not is_before(each))

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0, *, epoch: int) -> None:
        """Drop the bytes beyond ``size``, and the time stamps beyond so many."""
        self._check(epoch)
        del self._written.get(key, bytearray())[size:]
        del self._times.get(key, bytearray())[timestamps * TIMESTAMP_BYTES :]

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        """Drop whole outputs, if they are there."""
        for key in keys:
            for kept in (self._written, self._synced, self._times, self._times_synced):
                kept.pop(key, None)
            self._sealed.pop(key, None)
            self._released.pop(key, None)
            self._times_released.discard(key)

    async def seal(self, segments: Sequence[Segment], *, epoch: int) -> list[int | None]:
        """Keep these bytes, of which every one is synced."""
        self._check(epoch)
        for segment in segments:
            written, begin = self._synced, segment.number * self._segment_bytes
            if segment.number == TIMES:
                written, begin = self._times_synced, 0
            kept = self._sealed.setdefault(segment.key, {})
            if segment.number not in kept:
                data = written.get(segment.key, b"")[begin : begin + segment.size]
                assert len(data) == segment.size, "only what is recorded is sealed"
                kept[segment.number] = data
        return [segment.size for segment in segments]

    async def release(self, sealed: Mapping[OutputKey, int], *, complete: bool, epoch: int) -> None:
        """Have only the segments of these bytes from now on."""
        self._check(epoch)
        for key, end in sealed.items():
            kept = self._sealed.get(key, {})
            size = sum(len(data) for number, data in kept.items() if number != TIMES)
            assert size >= end, "only what is sealed is released"
            self._released[key] = end
            if complete:
                self._times_released.add(key)
            self._forget_released(key)

    def _forget_released(self, key: OutputKey) -> None:
        """Read from the segments what is released."""
        kept = self._sealed.get(key, {})
        whole = b"".join(kept[number] for number in sorted(kept) if number != TIMES)
        end = self._released[key]
        written = self._written.setdefault(key, bytearray())
        written[:end] = whole[:end]
        if key in self._times_released:
            self._times[key] = bytearray(kept.get(TIMES, b""))

    async def upload(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """There is no bucket."""
        raise NotImplementedError

    async def drop_uploaded(self, segments: Sequence[Segment], *, epoch: int) -> None:
        """There is no bucket."""
        raise NotImplementedError


Bytes = dict[OutputKey, bytearray]


def _after_crash(before: Bytes, synced: dict[OutputKey, bytes], *, torn: bool) -> Bytes:
    return {
        key: bytearray(
            synced.get(key, b"")
            + (bytes(max(0, len(data) - len(synced.get(key, b"")))) if torn else b"")
        )
        for key, data in before.items()
    }


def _put(kept: bytearray, at: int, data: bytes) -> None:
    kept.extend(bytes(max(0, at - len(kept))))
    kept[at : at + len(data)] = data
