"""When the bytes of kept outputs were written: by their time stamps, and before the first of these,
where an older version kept none, by the index of times. Called by the queries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime

from libs.store.port import Tx
from services.log_collector import domain, store
from services.log_collector.archives.port import Archive
from services.log_collector.domain import Entry, OutputKey, Timestamp

# Entries of the index that are read to find the next one with another time.
ENTRIES_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Output:
    """How much of an output is kept: bytes, and time stamps."""

    key: OutputKey
    size: int
    timestamps: int


@dataclass(frozen=True, slots=True)
class WriteTimes:
    """When the bytes of an answer were written, and where it ends for that; 0: anywhere."""

    timestamps: Sequence[Timestamp]
    end: int = 0
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class Times:
    """The times of all outputs. ArchiveError where they cannot be read."""

    archive: Archive
    transaction: Callable[[], AbstractAsyncContextManager[Tx]]

    def within(self, tx: Tx) -> Times:
        """The same, read in this transaction."""
        return replace(self, transaction=lambda: contextlib.nullcontext(tx))

    async def first_at(self, output: Output, at: datetime) -> int:
        """The first byte written at or after a time; the size if there is none. Where the index
        decides, it may be up to an entry early."""
        start, known = await self._around(output, at)
        return min(start, domain.start_since(known, at, output.size)) if known else start

    async def first_stamp(self, output: Output, at: datetime) -> int:
        """The first byte whose time is at or after a time, as ``of`` gives it; the size if there is
        none."""
        start, known = await self._around(output, at)
        return min((each.offset for each in known if each.first_at >= at), default=start)

    async def _around(self, output: Output, at: datetime) -> tuple[int, list[Entry]]:
        """The first byte whose time stamp is at or after a time; and where it is the first time
        stamp of all, the entries of the index around that time."""
        key, count = output.key, output.timestamps
        earlier = await self.archive.partition(key, count, lambda each: each.at < at)
        found = await self.archive.timestamps(key, earlier, 1) if earlier < count else []
        start = found[0].offset if found else output.size
        if earlier or start == 0:
            return start, []
        async with self.transaction() as tx:
            return start, await store.entries_around(tx, key, at)

    async def stamps(self, output: Output, start: int, end: int, most: int) -> WriteTimes:
        """When the bytes from ``start`` to ``end`` were written, and where an answer with at most
        so many times has to end."""
        key, count = output.key, output.timestamps
        before = await self.archive.partition(key, count, lambda each: each.offset <= start)
        # The one that covers the first byte, and one more than fits: there the answer ends.
        first = max(0, before - 1)
        found = await self.archive.timestamps(key, first, min(most + 1, count - first))
        approximate = before == 0
        if approximate:
            exact = found[0].offset if found else end
            async with self.transaction() as tx:
                entries = await store.entries_from(tx, key, start, most)
            found = [Timestamp(each.offset, each.first_at) for each in entries]
            end = min(end, exact)
        inside = domain.covering(found, start, end)
        if len(inside) > most:
            end = inside[most].offset
        return WriteTimes(inside[:most], end, approximate=approximate and bool(inside))

    async def of(self, output: Output, offset: int) -> datetime:
        """When one byte was written; ``EPOCH`` where that is not known."""
        found = await self.stamps(output, offset, offset + 1, 1)
        return found.timestamps[0].at if found.timestamps else domain.EPOCH

    async def next_after(self, output: Output, offset: int, at: datetime) -> datetime | None:
        """The first time that begins behind ``offset`` and is after ``at``; None: there is none."""
        key, count = output.key, output.timestamps

        def is_before(each: Timestamp) -> bool:
            return each.offset <= offset or each.at <= at

        number = await self.archive.partition(key, count, is_before)
        found = await self.archive.timestamps(key, number, 1) if number < count else []
        if number == 0 and (not found or found[0].offset > 0):
            async with self.transaction() as tx:
                entries = await store.entries_from(tx, key, offset, ENTRIES_AHEAD)
            known = [Timestamp(each.offset, each.first_at) for each in entries]
            found = [*(each for each in known if not is_before(each)), *found]
        return min((each.at for each in found), default=None)
