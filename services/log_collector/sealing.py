"""Compresses kept output in the background, and moves it to the bucket where there is one.

A loop of the leader. For each piece of work the order is the same, and every step may be repeated:

1. the archive writes and syncs the new place;
2. one transaction makes it count;
3. the archive removes the old place;
4. a second transaction notes that nothing of it is left, so that nobody looks again.

Outputs that are still written are sealed a whole segment at a time, those of collected runs
completely, also those of versions without segments. The loop rests in proportion to its work
(``seal_share``), but not while outputs that are written are behind.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from libs.service.loop import Loop, Wake
from libs.service.observability import log
from libs.store.port import Store, TermOverError
from services.log_collector import store
from services.log_collector.archives.bucket_options import BucketOptions
from services.log_collector.archives.metrics import SEAL_FAILURES, UPLOAD_FAILING
from services.log_collector.archives.port import (
    TIMES,
    Archive,
    ArchiveError,
    NotWriterError,
    Segment,
    UnreachableError,
)
from services.log_collector.domain import TIMESTAMP_BYTES, OutputKey, SealOptions
from services.log_collector.state import SERVICE, Run, State, Tail
from services.log_collector.store import OutputRow, RunRow, SegmentPlace, SegmentRow

# Segments that one transaction makes count, and that are uploaded in between.
BATCH_MAX, UPLOADS_MAX = 256, 8
# Runs that are read at a time, and failing ones that are remembered.
RUNS_MAX, FAILING_MAX = 16, 1000
FAILED_SECONDS = 600.0
TICK_SECONDS = 60.0


class Options(SealOptions, BucketOptions):
    """What the sealer takes of the settings."""


@dataclass
class Sealer:
    """The sealing of one leader."""

    database: Store
    archive: Archive
    state: State
    options: Options
    # Held while outputs of ended runs change, also by the loop that drops them.
    ended: asyncio.Lock
    # When runs that could not be sealed are tried again.
    failing: dict[Run, float] = field(default_factory=dict)
    # Since when the bucket takes nothing, when it is tried again, and after how long then.
    upload_failed_at: float | None = None
    upload_at: float = 0.0
    upload_pause: float = 0.0

    async def step(self, epoch: int) -> float | None:
        """Do one batch; returns in how many seconds the next one is due. TermOverError if another
        leader writes to the archive."""
        began = _now()
        try:
            async with self.ended:
                if await self._seal_open(epoch):
                    return 0.0
                more = await self._seal_ended(epoch)
                more = await self._upload(epoch) or more
        except NotWriterError as problem:
            raise TermOverError(str(problem)) from problem
        except ArchiveError as problem:
            log(SERVICE).warning("output cannot be compressed now", problem=str(problem))
            return self.options.seal_retry_seconds
        share = self.options.seal_share
        pause = (_now() - began) * (1 - share) / share
        if more:
            return pause
        return max(pause, self.upload_at - _now()) if self.upload_failed_at else None

    async def _seal_open(self, epoch: int) -> bool:
        """Seal whole segments of outputs that are written. Returns whether there were any."""
        whole, tails = self.archive.segment_bytes, self.state.tails
        # What a process before this one sealed and perhaps did not release.
        await self._release_open(
            [tail for tail in tails.values() if tail.released < tail.sealed], epoch
        )
        now = _now()
        due = (
            (tail, number)
            for tail in tails.values()
            if self.failing.get((tail.key.task_id, tail.key.attempt), 0.0) <= now
            for number in range(tail.sealed, tail.recorded // whole)
        )
        batch = list(islice(due, self._batch_max(whole)))
        if not batch:
            return False
        # In their order, so that those of an output that are sealed are its first ones.
        done = await self._seal([Segment(tail.key, number, whole) for tail, number in batch], epoch)
        for tail, number in batch:
            if Segment(tail.key, number, whole) in done and tail.sealed == number:
                tail.sealed = number + 1
        await self._release_open([tail for tail, _ in batch], epoch)
        for segment in {Segment(tail.key, number, whole) for tail, number in batch} - done:
            run = (segment.key.task_id, segment.key.attempt)
            self._failed(run, ArchiveError("recorded output is missing"))
        return True

    async def _release_open(self, tails: Sequence[Tail], epoch: int) -> None:
        sealed = {tail.key: tail.sealed for tail in tails}
        if not sealed:
            return
        whole = self.archive.segment_bytes
        ends = {key: count * whole for key, count in sealed.items()}
        await self.archive.release(ends, complete=False, epoch=epoch)
        for tail in tails:
            tail.released = sealed[tail.key]

    async def _seal_ended(self, epoch: int) -> bool:
        """Seal a batch of one collected run. Returns whether there may be more."""
        async with self.database.transaction() as tx:
            rows = await store.runs_to_seal(tx, RUNS_MAX + len(self.failing))
        now = _now()
        for row in rows:
            run = (row.task_id, row.attempt)
            if self.failing.get(run, 0.0) > now:
                continue
            try:
                await self._seal_run(row, epoch)
            except NotWriterError:
                raise
            except ArchiveError as problem:
                if _is_full(problem):
                    raise
                self._failed(run, problem)
            else:
                self.failing.pop(run, None)
            return True
        return False

    def _failed(self, run: Run, problem: Exception) -> None:
        """Leave a run alone for some time: the others are sealed meanwhile."""
        log(SERVICE).error(
            "output cannot be compressed", task=run[0], attempt=run[1], problem=str(problem)
        )
        SEAL_FAILURES.inc()
        self.failing.pop(run, None)
        while len(self.failing) >= FAILING_MAX:
            self.failing.pop(next(iter(self.failing)))
        self.failing[run] = _now() + FAILED_SECONDS

    async def _seal_run(self, row: RunRow, epoch: int) -> None:
        async with self.database.transaction() as tx:
            outputs = await store.outputs_of(tx, row.task_id, row.attempt)
            known = await store.segments_of(tx, row.task_id, row.attempt)
        whole = self.archive.segment_bytes
        missing = [
            segment
            for rank, output in outputs.items()
            for segment in _segments(output, whole)
            if segment.number not in known.get(rank, {})
        ]
        batch = list(islice(_up_to(missing, self.options.seal_batch_bytes), BATCH_MAX))
        if batch:
            done = await self._seal(batch, epoch)
            if len(done) < len(batch):
                raise ArchiveError("recorded output is missing")
        if len(batch) < len(missing):
            return
        ends = {
            OutputKey(row.task_id, row.attempt, rank): output.size
            for rank, output in outputs.items()
        }
        await self.archive.release(ends, complete=True, epoch=epoch)
        async with self.database.transaction(epoch=epoch) as tx:
            current = await tx.get(RunRow, row.task_id, row.attempt)
            assert current is not None, "nothing drops a run meanwhile"
            known = await store.segments_of(tx, row.task_id, row.attempt)
            size = sum(each.stored_bytes for rank in known.values() for each in rank.values())
            tx.put(replace(current, sealed=True, stored_bytes=size))
            await store.add_to_owner(tx, current.owner, size - current.stored_bytes)

    async def _seal(self, segments: Sequence[Segment], epoch: int) -> set[Segment]:
        """Seal these and make them count. Returns those of which anything was there."""
        sizes = await self.archive.seal(segments, epoch=epoch)
        done = {each: size for each, size in zip(segments, sizes, strict=True) if size is not None}
        async with self.database.transaction(epoch=epoch) as tx:
            tx.put(*(_row(segment, size) for segment, size in done.items()))
        return set(done)

    async def _upload(self, epoch: int) -> bool:
        """Move a batch of segments to the bucket. Returns whether there may be more."""
        if not self.archive.has_bucket or _now() < self.upload_at:
            return False
        async with self.database.transaction() as tx:
            left = await store.segments_in(tx, SegmentPlace.BOTH, BATCH_MAX)
            waiting = await store.segments_in(tx, SegmentPlace.FOLDER, UPLOADS_MAX)
        if waiting:
            try:
                await self.archive.upload([row.segment for row in waiting], epoch=epoch)
            except UnreachableError as problem:
                self._upload_failed(problem)
                waiting = ()
            else:
                self._upload_worked()
                await self._move(waiting, SegmentPlace.BOTH, epoch)
        else:
            self._upload_worked()
        moved = (*left, *waiting)
        if moved:
            await self.archive.drop_uploaded([row.segment for row in moved], epoch=epoch)
            await self._move(moved, SegmentPlace.BUCKET, epoch)
        return bool(moved)

    async def _move(self, rows: Sequence[SegmentRow], place: SegmentPlace, epoch: int) -> None:
        async with self.database.transaction(epoch=epoch) as tx:
            tx.put(*(replace(row, place=place) for row in rows))

    def _upload_worked(self) -> None:
        self.upload_failed_at, self.upload_at, self.upload_pause = None, 0.0, 0.0
        UPLOAD_FAILING.set(0)

    def _upload_failed(self, problem: Exception) -> None:
        """Nothing is removed here, and readers of what is here notice nothing."""
        now = _now()
        if self.upload_failed_at is None:
            log(SERVICE).error("sealed output cannot be uploaded", problem=str(problem))
            self.upload_failed_at = now
        UPLOAD_FAILING.set(max(1.0, now - self.upload_failed_at))
        self.upload_pause = min(
            self.options.bucket_retry_seconds_max,
            max(self.options.seal_retry_seconds, 2 * self.upload_pause),
        )
        self.upload_at = now + self.upload_pause

    def _batch_max(self, whole: int) -> int:
        return max(1, min(BATCH_MAX, self.options.seal_batch_bytes // whole))


def seal_loop(sealer: Sealer, wake: Wake) -> Loop:
    """Seals; woken when a run is collected or an output has a whole segment more."""
    return Loop(
        name="seal", step=sealer.step, tick_seconds=TICK_SECONDS, wake=wake, wake_on_commit=False
    )


def _segments(output: OutputRow, whole: int) -> Iterator[Segment]:
    """The segments of a complete output, and that of its time stamps."""
    key = OutputKey(output.task_id, output.attempt, output.rank)
    for begin in range(0, output.size, whole):
        yield Segment(key, begin // whole, min(whole, output.size - begin))
    if output.timestamps:
        yield Segment(key, TIMES, output.timestamps * TIMESTAMP_BYTES)


def _up_to(segments: Sequence[Segment], bytes_max: int) -> Iterator[Segment]:
    """The first ones, at least one, until they have so many bytes."""
    size = 0
    for segment in segments:
        if size and size + segment.size > bytes_max:
            return
        size += segment.size
        yield segment


def _row(segment: Segment, stored_bytes: int) -> SegmentRow:
    key = segment.key
    return SegmentRow(
        key.task_id, key.attempt, key.rank, segment.number, segment.size, stored_bytes
    )


def _is_full(problem: ArchiveError) -> bool:
    cause = problem.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ENOSPC


def _now() -> float:
    return asyncio.get_running_loop().time()
