"""log-collector's rows and the queries on them.

``RunRow`` is written by the handlers until the run is collected, everything else by the collector
alone, so that the two never write the same row at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from libs.contracts.messages import Placement
from libs.service.prune import nth_newest, oldest_of
from libs.store.port import Op, Order, Tx, Where
from services.log_collector.archives.port import TIMES, Segment
from services.log_collector.domain import Entry, OutputKey


@dataclass(frozen=True, slots=True)
class RunRow:
    """One attempt and its placements. It goes from started to exited to collected, never back."""

    task_id: str
    attempt: int
    placements: tuple[Placement, ...]
    exited_at: datetime | None
    # Everything its ranks wrote is kept.
    collected: bool
    # It failed or was lost, and its output is not searched for error lines yet: of these ranks, in
    # this order.
    errors_wanted: bool = False
    error_ranks: tuple[int, ...] = ()
    # The task's owner; empty where an event of a version before did not name it.
    owner: str = ""
    # Nothing of its outputs is left as it was written: all is in segments.
    sealed: bool = False
    # What a collected run takes where its output is kept: compressed once it is sealed.
    stored_bytes: int = 0
    # Its plain files are written; only where the site wants them.
    written: bool = False


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One rank's kept output: ``size`` bytes of it are on disk for certain."""

    task_id: str
    attempt: int
    rank: int
    size: int
    # The size limit was reached: nothing more is kept.
    full: bool
    # The rank has ended and everything it wrote is kept.
    complete: bool
    recorded_at: datetime
    # Bytes of the source, up to the end of what is kept, that are not kept: overwritten states of
    # lines.
    skipped: int = 0
    # With any of these: the last bytes of the source before that end. Otherwise they are the last
    # ones kept.
    before: bytes = b""
    # Bytes came that are no text: from there on nothing is skipped.
    binary: bool = False
    # So many of its time stamps are on disk for certain.
    timestamps: int = 0


class SegmentPlace(StrEnum):
    """Where a sealed segment is."""

    FOLDER = "folder"
    # The bucket has confirmed it; the one in the folder is to be removed.
    BOTH = "both"
    BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A sealed segment of an output, which counts: see ``archives.port.Segment``."""

    task_id: str
    attempt: int
    rank: int
    number: int
    # Bytes of the output (of its time stamps), and compressed.
    size: int
    stored_bytes: int
    place: SegmentPlace = SegmentPlace.FOLDER

    @property
    def segment(self) -> Segment:
        """What the archive calls it."""
        return Segment(OutputKey(self.task_id, self.attempt, self.rank), self.number, self.size)


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What the collected runs of one owner take."""

    owner: str
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class EntryRow:
    """Part of the index of times of an old output: see ``domain.Entry``. Nothing writes these rows
    any more; they go with their run."""

    task_id: str
    attempt: int
    rank: int
    offset: int
    first_at: datetime
    last_at: datetime


async def open_runs(tx: Tx) -> Sequence[RunRow]:
    """Runs whose output is not all kept yet."""
    return await tx.select(RunRow, Where("collected", Op.EQ, value=False))


async def runs_to_search(tx: Tx, limit: int) -> Sequence[RunRow]:
    """Collected runs whose output is to be searched for error lines."""
    return await tx.select(
        RunRow,
        Where("errors_wanted", Op.EQ, value=True),
        Where("collected", Op.EQ, value=True),
        limit=limit,
    )


async def outputs_of(tx: Tx, task_id: str, attempt: int) -> dict[int, OutputRow]:
    """A run's outputs by rank."""
    rows = await tx.select(
        OutputRow, Where("task_id", Op.EQ, task_id), Where("attempt", Op.EQ, attempt)
    )
    return {row.rank: row for row in rows}


async def segments_of(tx: Tx, task_id: str, attempt: int) -> dict[int, dict[int, SegmentRow]]:
    """A run's sealed segments by rank and number."""
    rows = await tx.select(
        SegmentRow, Where("task_id", Op.EQ, task_id), Where("attempt", Op.EQ, attempt)
    )
    found: dict[int, dict[int, SegmentRow]] = {}
    for row in rows:
        found.setdefault(row.rank, {})[row.number] = row
    return found


def sealed_count(segments: Mapping[int, SegmentRow]) -> int:
    """How many segments of an output are sealed: they are the first ones."""
    return max((number for number in segments if number != TIMES), default=-1) + 1


async def runs_to_seal(tx: Tx, limit: int) -> Sequence[RunRow]:
    """Collected runs of which something is not sealed, those that ended first before others."""
    return await tx.select(
        RunRow,
        Where("collected", Op.EQ, value=True),
        Where("sealed", Op.EQ, value=False),
        order_by=[Order("exited_at")],
        limit=limit,
    )


async def runs_to_write(tx: Tx, limit: int) -> Sequence[RunRow]:
    """Collected runs whose plain files are not written, those that ended first before others."""
    return await tx.select(
        RunRow,
        Where("collected", Op.EQ, value=True),
        Where("written", Op.EQ, value=False),
        order_by=[Order("exited_at")],
        limit=limit,
    )


async def mark_written(tx: Tx, row: RunRow) -> None:
    """Note that a run's plain files are there, unless it was dropped meanwhile."""
    current = await tx.get(RunRow, row.task_id, row.attempt)
    if current is not None:
        tx.put(replace(current, written=True))


async def segments_in(tx: Tx, place: SegmentPlace, limit: int) -> Sequence[SegmentRow]:
    """Segments in one place, in no order."""
    return await tx.select(SegmentRow, Where("place", Op.EQ, place), limit=limit)


async def add_to_owner(tx: Tx, owner: str, stored_bytes: int) -> None:
    """Count more bytes (or fewer) for an owner. The leader's transactions exclude each other."""
    if stored_bytes:
        row = await tx.get(OwnerRow, owner)
        count = max(0, (row.stored_bytes if row else 0) + stored_bytes)
        if count:
            tx.put(OwnerRow(owner, count))
        else:
            tx.delete(OwnerRow, owner)


async def newest_runs(tx: Tx, task_id: str, limit: int) -> Sequence[RunRow]:
    """A task's runs, newest first."""
    return await tx.select(
        RunRow,
        Where("task_id", Op.EQ, task_id),
        order_by=[Order("attempt", descending=True)],
        limit=limit,
    )


async def runs_to_drop(tx: Tx, exited_before: datetime, limit: int) -> Sequence[RunRow]:
    """Collected runs that ended before a time, the oldest first."""
    return await tx.select(
        RunRow,
        Where("collected", Op.EQ, value=True),
        Where("exited_at", Op.LT, exited_before),
        order_by=[Order("exited_at")],
        limit=limit,
    )


async def runs_beyond(tx: Tx, bytes_max: int, limit: int) -> Sequence[RunRow]:
    """The runs to drop of an owner whose collected runs take more than allowed, those that ended
    first; none if no owner's do. The newest run of an owner stays, whatever it takes."""
    beyond = await tx.select(OwnerRow, Where("stored_bytes", Op.GT, bytes_max), limit=1000)
    for owner in beyond:
        mine = (Where("owner", Op.EQ, owner.owner), Where("collected", Op.EQ, value=True))
        newest_first = [Order("exited_at", descending=True)]
        newest = await tx.select(RunRow, *mine, order_by=newest_first, limit=1)
        rows = await tx.select(RunRow, *mine, order_by=[Order("exited_at")], limit=limit)
        chosen: list[RunRow] = []
        left = owner.stored_bytes
        for row in rows:
            if left <= bytes_max or row == newest[0]:
                break
            chosen.append(row)
            left -= row.stored_bytes
        if chosen:
            return chosen
    return ()


async def collected_since(tx: Tx, since: datetime, limit: int) -> Sequence[RunRow]:
    """Collected runs that ended at or after a time, the newest first."""
    return await tx.select(
        RunRow,
        Where("collected", Op.EQ, value=True),
        Where("exited_at", Op.GE, since),
        order_by=[Order("exited_at", descending=True)],
        limit=limit,
    )


async def oldest_exit(tx: Tx) -> datetime | None:
    """The end of the collected run that ended first."""
    return await oldest_of(tx, RunRow, "exited_at", Where("collected", Op.EQ, value=True))


async def nth_newest_exit(tx: Tx, newer: int) -> datetime | None:
    """The end of the collected run behind so many that ended later; None without one."""
    return await nth_newest(tx, RunRow, "exited_at", newer, Where("collected", Op.EQ, value=True))


async def drop_part(tx: Tx, row: RunRow, first_rank: int, limit: int) -> int | None:
    """Forget a piece of what is known of a run's outputs, from a rank on: at most ``limit`` rows.

    Returns the rank to go on at; None once nothing is left, and with it the run itself. A long run
    has millions of entries, which no single statement may delete.
    """
    mine = (
        Where("task_id", Op.EQ, row.task_id),
        Where("attempt", Op.EQ, row.attempt),
        # Lower ranks have none left: the database need not step over what was just deleted.
        Where("rank", Op.GE, first_rank),
    )
    entries = await tx.select(EntryRow, *mine, limit=limit)
    for entry in entries:
        tx.delete(EntryRow, entry.task_id, entry.attempt, entry.rank, entry.offset)
    if len(entries) == limit:
        return entries[-1].rank
    segments = await tx.select(SegmentRow, *mine[:2], limit=limit)
    for segment in segments:
        tx.delete(SegmentRow, segment.task_id, segment.attempt, segment.rank, segment.number)
    if len(segments) == limit:
        return entries[-1].rank if entries else first_rank
    outputs = await tx.select(OutputRow, *mine[:2], limit=limit)
    for output in outputs:
        tx.delete(OutputRow, output.task_id, output.attempt, output.rank)
    if len(outputs) == limit:
        return entries[-1].rank if entries else first_rank
    # As it is now: it may have been sealed since the caller read it.
    current = await tx.get(RunRow, row.task_id, row.attempt)
    if current is not None:
        await add_to_owner(tx, current.owner, -current.stored_bytes)
    tx.delete(RunRow, row.task_id, row.attempt)
    return None


async def entries_around(tx: Tx, key: OutputKey, since: datetime) -> list[Entry]:
    """The last entry that begins before a time, and the first one that begins then or after."""
    mine = (
        Where("task_id", Op.EQ, key.task_id),
        Where("attempt", Op.EQ, key.attempt),
        Where("rank", Op.EQ, key.rank),
    )
    before = await tx.select(
        EntryRow,
        *mine,
        Where("first_at", Op.LT, since),
        order_by=[Order("first_at", descending=True), Order("offset", descending=True)],
        limit=1,
    )
    after = await tx.select(
        EntryRow,
        *mine,
        Where("first_at", Op.GE, since),
        order_by=[Order("first_at"), Order("offset")],
        limit=1,
    )
    rows = sorted((*before, *after), key=lambda row: row.offset)
    return [Entry(row.offset, row.first_at, row.last_at) for row in rows]


async def entries_from(tx: Tx, key: OutputKey, offset: int, limit: int) -> list[Entry]:
    """The entry of the byte at an offset, and those after it, at most so many."""
    mine = (
        Where("task_id", Op.EQ, key.task_id),
        Where("attempt", Op.EQ, key.attempt),
        Where("rank", Op.EQ, key.rank),
    )
    at = await tx.select(
        EntryRow,
        *mine,
        Where("offset", Op.LE, offset),
        order_by=[Order("offset", descending=True)],
        limit=1,
    )
    after = await tx.select(
        EntryRow, *mine, Where("offset", Op.GT, offset), order_by=[Order("offset")], limit=limit
    )
    return [Entry(row.offset, row.first_at, row.last_at) for row in (*at, *after)]
