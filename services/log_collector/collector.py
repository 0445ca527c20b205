"""Copies ranks' output from the source to the archive exactly once, and publishes it to live
readers.

``loop.py`` calls ``step`` again and again on the leader. Copied bytes count only when the recorder
has synced them *and* the database has their size. After a crash the copy continues from that size:
bytes written beyond it are dropped and read again from the source, so none is lost or doubled.

The collector keeps only the last state of a line that is being rewritten (a progress bar), once the
line ends. Until then live readers get its state, and some states are kept for later ones. Skipped
bytes are counted: an offset in the source is the kept size plus these.

Output of pods has its secrets masked here (``masks.py``): a mask is shorter than what it stands
for, and the difference counts as skipped.

Every read adds time stamps to its bytes: those of the source, or the time of reading.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from libs.bus.port import Bus, BusError
from libs.contracts.envelope import Envelope
from libs.contracts.messages import LogChunk, LogTimestamp, Placement
from libs.service.clock import Clock
from libs.service.loop import Wake
from libs.service.masking import MASK, Masker
from libs.service.observability import log
from libs.store.port import Delta, Store, TermOverError
from services.log_collector import domain, store
from services.log_collector.archives.port import Archive, ArchiveError, NotWriterError, Write
from services.log_collector.domain import (
    Address,
    Bounds,
    Folded,
    OutputKey,
    Pace,
    Timestamp,
)
from services.log_collector.masks import (
    MASKED_BYTES_MIN,
    RunMasks,
    Turns,
    mask_next,
    masked_whole,
    next_read_bytes,
)
from services.log_collector.sources.port import LogSource, ReadRequest, ReadResult, Stored
from services.log_collector.state import SERVICE, Run, State, Tail, keys_of
from services.log_collector.store import OutputRow, RunRow

# So many outputs are written to the archive and published at a time.
KEEP_OUTPUTS_MAX = 128
# So many of the last kept bytes are shown to the source with each question.
LAST_BYTES = 64
# The least interval of publishing the state of a line that is being rewritten.
PUBLISH_LINE_SECONDS = 0.5
# A state of it is kept after so long, doubling from the least to the most while its line goes on.
KEEP_LINE_SECONDS_MIN, KEEP_LINE_SECONDS_MAX = 2.0, 60.0
# A new leader repeats to the source what was collected in this time, for so many runs at most.
REPEAT_WINDOW, REPEAT_MAX = timedelta(hours=1), 10_000
# So many time stamps at most are taken over of what a process before kept and did not record.
TAKEN_OVER_MAX = 65_536


@dataclass(slots=True)
class PendingWrite:
    """What is new of an output, on its way to the archive and to live readers."""

    tail: Tail
    new: Folded
    # What is kept of it, with the limit's line where that is reached.
    data: bytes
    full: bool
    now: datetime
    offset: int = field(init=False)
    timestamps: list[Timestamp] = field(init=False)

    def __post_init__(self) -> None:
        tail = self.tail
        self.offset = tail.size
        self.timestamps = domain.stamped(
            tail.size, len(self.data), self.new.timestamps, tail.written_at, self.now
        )

    def write(self) -> Write:
        """What the archive gets."""
        tail = self.tail
        return Write(tail.key, self.offset, self.data, self.timestamps, tail.timestamps)


@dataclass
class Collector:
    """The copying of one leader."""

    database: Store
    bus: Bus
    clock: Clock
    source: LogSource
    archive: Archive
    bounds: Bounds
    pace: Pace
    state: State
    # The recorder's: set when there is something that it should not wait with.
    record: Wake
    # Runs to take up at the next step, and what was known of their outputs when leading began.
    new_runs: dict[Run, RunRow] = field(default_factory=dict)
    # Where the source does not mask secrets.
    masks: RunMasks | None = None
    turns: Turns = field(default_factory=Turns)
    known: dict[Run, dict[int, OutputRow]] = field(default_factory=dict)
    # How many segments of their outputs are sealed.
    sealed: dict[OutputKey, int] = field(default_factory=dict)
    last_data_at: datetime | None = None
    led_at: datetime | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        self.log = log(SERVICE)

    def on_commit(self, delta: Delta) -> bool:
        """Note what a commit changed about runs; True if that is something to act on."""
        new_runs = [row for row in delta.put if isinstance(row, RunRow) and not row.collected]
        self.new_runs.update({(row.task_id, row.attempt): row for row in new_runs})
        return bool(new_runs)

    async def lead(self, epoch: int) -> None:
        """Begin as a new leader: note what the database knows; the first step takes it up."""
        self.state.clear()
        self.epoch, self.turns = epoch, Turns()
        # A disk that refuses now is met again, and waited for, at the first write.
        with contextlib.suppress(ArchiveError):
            await self.archive.admit(epoch)
        async with self.database.transaction(epoch=epoch) as tx:
            runs = {(row.task_id, row.attempt): row for row in await store.open_runs(tx)}
            self.known = {run: await store.outputs_of(tx, *run) for run in runs}
            self.sealed = {
                OutputKey(*run, rank): store.sealed_count(segments)
                for run in runs
                for rank, segments in (await store.segments_of(tx, *run)).items()
            }
            since = self.clock.now() - REPEAT_WINDOW
            ended = await store.collected_since(tx, since, REPEAT_MAX)
        self.new_runs, self.led_at = runs, self.clock.now()
        # The former process may have died before it could report this.
        await self.source.stored(
            [
                Stored(Address(key, place.node_id), 0, done=True)
                for row in ended
                for key, place in _places(row).items()
            ]
        )

    async def step(self, epoch: int) -> float | None:
        """One pass over all outputs; returns in how many seconds the next one is due. TermOverError
        if another leader writes to the archive."""
        del epoch  # that of ``lead``
        try:
            await self._take_up()
            more = await self._copy()
        except NotWriterError as problem:
            # Another process leads. Or one that did came late: then the next term takes it back.
            raise TermOverError(str(problem)) from problem
        except ArchiveError as error:
            self.log.warning("output cannot be kept now", problem=str(error))
            return self.bounds.retry_seconds
        quiet = self.pace.linger_seconds
        if self.last_data_at is not None:
            quiet = (self.clock.now() - self.last_data_at).total_seconds()
        outputs = len(self.state.tails) + len(self.new_runs)
        return domain.next_scan_seconds(self.pace, outputs=outputs, more=more, quiet_seconds=quiet)

    async def _take_up(self) -> None:
        """Open the outputs of runs that are new, and note the exits of others."""
        new_runs = list(self.new_runs.items())
        places = {key: place for _, row in new_runs for key, place in _places(row).items()}
        keys = [key for key in places if key not in self.state.tails]
        if keys:
            # One question for all of them: runs may start by the hundred.
            found = await self.archive.sizes(keys)
            whole = self.archive.segment_bytes
            # Of a segment in a bucket the archive's folder knows nothing.
            sizes = {
                key: max(size, self.sealed.get(key, 0) * whole)
                for key, size in zip(keys, found, strict=True)
            }
            opened = [await self._tail(key, places[key], sizes[key]) for key in keys]
            waiting = await self._recover([tail for tail in opened if not tail.complete], sizes)
            for tail in opened:
                await self._remember_last(tail)
        else:
            opened, waiting = [], set[Run]()
        tails = {tail.key: tail for tail in opened}
        for run, row in new_runs:
            if run in waiting:
                continue
            for key in keys_of(row):
                tail = self.state.tails.setdefault(key, tails.get(key) or self.state.tails[key])
                tail.exited_at = row.exited_at
            self.state.runs[run] = row
            self.record.set()
            if self.masks is not None:
                self.masks.wake.set()
            self.known.pop(run, None)
            if self.new_runs.get(run) is row:
                del self.new_runs[run]

    async def _tail(self, key: OutputKey, placement: Placement, stored: int) -> Tail:
        known = self.known.get((key.task_id, key.attempt), {}).get(key.rank)
        recorded = known.size if known else 0
        now = self.clock.now()
        tail = Tail(Address(key, placement.node_id), placement.role, recorded, recorded, now)
        if known is not None:
            tail.full, tail.last, tail.binary = known.full, known.before, known.binary
            tail.skipped = tail.recorded_skipped = known.skipped
            tail.timestamps = known.timestamps
            tail.sealed = self.sealed.get(key, 0)
            tail.complete = tail.closed = known.complete
        if tail.complete:
            # The former process may have died before it could report this.
            await self.source.stored([Stored(tail.address, tail.source_offset, done=True)])
        elif stored < recorded:
            self.log.error("kept output is shorter than it was", stored=stored, was=recorded)
            tail.size, tail.full = min(stored, self.bounds.output_bytes_max), False
            tail.shrunk = True
            tail.timestamps = await self.archive.partition(
                key, tail.timestamps, lambda each: each.offset < tail.size
            )
            # Where that is in the source is not known: rather too much comes again than too little.
            tail.skipped, tail.last, tail.may_begin_within = 0, b"", True
        return tail

    async def _recover(self, tails: Sequence[Tail], sizes: Mapping[OutputKey, int]) -> set[Run]:
        """Cut the kept copies to the recorded sizes, and continue from there.

        Where the source cannot give the bytes beyond again, they are the only copy and stay. With
        masks in them they do not tell a place in the source: they count once nothing can follow.
        Returns the runs of which that is not known yet.
        """
        beyond = [tail for tail in tails if sizes[tail.key] > tail.recorded]
        requests = [ReadRequest(tail.address, tail.source_offset, 1, sure=True) for tail in beyond]
        answers = await self.source.read(requests, len(requests)) if requests else ()
        may_wait = self._waited(self.led_at) < self.bounds.unreadable_seconds_max
        waiting: set[Run] = set()
        for tail, result in zip(beyond, answers, strict=True):
            if result is not None and result.data:
                await self.archive.truncate(
                    tail.key, tail.recorded, tail.timestamps, epoch=self.epoch
                )
            elif may_wait and (result is None or result.unsure or result.problem):
                waiting.add((tail.key.task_id, tail.key.attempt))
            elif self.masks is not None:
                tail.unrecorded_size = sizes[tail.key]
            else:
                await self._take_over(tail, sizes[tail.key])
        return waiting

    async def _take_over(self, tail: Tail, size: int) -> None:
        """Keep bytes that are not recorded, with their time stamps; if these are damaged, with the
        current time."""
        await self._remember_last(tail)
        number, now = tail.timestamps, self.clock.now()
        found = await self.archive.timestamps(tail.key, number, TAKEN_OVER_MAX)
        good = domain.credible(found, tail.size, size, tail.written_at, now)
        if not good:
            good = domain.stamped(tail.size, size - tail.size, (), tail.written_at, now)
            await self.archive.write([Write(tail.key, size, b"", good, number)], epoch=self.epoch)
        tail.timestamps, tail.written_at = number + len(good), good[-1].at
        tail.size, tail.last, tail.unrecorded_size = size, b"", 0

    async def _remember_last(self, tail: Tail) -> None:
        """Read the end of what is kept, where the process before left it."""
        if tail.complete:
            return
        if tail.size and (self.masks is not None or not tail.last):
            # Only what is not sealed: the bucket may be away, and this serves to find a place only.
            begin = max(tail.sealed * self.archive.segment_bytes, tail.size - LAST_BYTES)
            tail.kept = await self.archive.read(tail.key, begin, tail.size - begin)
            # Masks are not what the source has.
            if not tail.last and self.masks is None:
                tail.last = tail.kept
        if tail.timestamps and tail.written_at is None:
            last = await self.archive.timestamps(tail.key, tail.timestamps - 1, 1)
            tail.written_at = last[0].at if last else None

    def _waited(self, since: datetime | None) -> float:
        return (self.clock.now() - since).total_seconds() if since else 0.0

    async def _copy(self) -> bool:
        """Read new bytes, keep and publish them. Returns whether there is more to read at once."""
        tails = self.state.tails
        self.turns.begin_pass()
        wanted = [tail for tail in tails.values() if not (tail.complete or tail.full)]
        open_tails = self._in_turn([tail for tail in wanted if self._is_maskable(tail)])
        requests = [self._request(tail) for tail in open_tails]
        answers: Sequence[ReadResult | None] = ()
        if requests:
            answers = await self.source.read(requests, self.bounds.pass_bytes_max)
        found = [
            (tail, result)
            for tail, result in zip(open_tails, answers, strict=True)
            if result is not None
        ]
        fresh = [(tail, result) for tail, result in found if result.data]
        kept = await self._keep_fresh(fresh)
        await self._keep_lines()
        self.turns.begin()
        for tail, result in found:
            if tail.exited_at is not None or result.problem != tail.problem:
                await self._check_end(tail, result)
        for tail in wanted:
            if self.masks is not None and (problem := self.masks.problem_of(_run_of(tail))):
                await self._check_end(tail, ReadResult(problem=problem))
        for tail in tails.values():
            # Nothing is kept beyond the limit, so the exit is the end.
            if tail.full and tail.exited_at is not None:
                self._end(tail)
        for tail in kept:  # the next pass begins with the others
            tails[tail.key] = tails.pop(tail.key)
        return len(kept) < len(fresh) or any(
            result is None or len(result.data) >= request.bytes_max
            for request, result in zip(requests, answers, strict=True)
        )

    def _in_turn(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        """Outputs in the order in which they are masked."""
        if self.masks is None:
            return tails
        return sorted(tails, key=lambda tail: self.turns.spent(self._owner(tail)))

    def _owner(self, tail: Tail) -> str:
        return self.state.runs[_run_of(tail)].owner

    def _request(self, tail: Tail) -> ReadRequest:
        return ReadRequest(
            tail.address,
            tail.source_offset + len(tail.line),
            min(self.bounds.read_bytes_max, tail.read_bytes),
            (tail.last + tail.line)[-LAST_BYTES:] if tail.line else tail.last,
            sure=tail.exited_at is not None,
        )

    async def _keep_fresh(self, fresh: Sequence[tuple[Tail, ReadResult]]) -> list[Tail]:
        """Keep what was read, a batch at a time: live readers of the first outputs do not wait for
        the last one's disk. Returns the outputs of which it is kept."""
        for tail, _ in fresh:
            if tail.unrecorded_size:
                await self.archive.truncate(
                    tail.key, tail.recorded, tail.timestamps, epoch=self.epoch
                )
                tail.unrecorded_size = 0
        kept: list[Tail] = []
        rest = iter(fresh)
        while batch := list(islice(rest, KEEP_OUTPUTS_MAX)):
            kept += await self._keep([(tail, _folded(tail, result)) for tail, result in batch])
        return kept

    def _is_maskable(self, tail: Tail) -> bool:
        """Whether its output may be read: its secrets are known, or masked by its source."""
        if self.masks is None or tail.masker is not None:
            return True
        forms = self.masks.forms_of(_run_of(tail))
        if forms is None:
            return False
        # What the process before kept may end within a value, of which the mask is there.
        resumed = tail.may_begin_within or tail.kept.endswith(MASK)
        tail.masker = Masker(forms, resumed=resumed)
        tail.read_bytes = MASKED_BYTES_MIN
        return True

    async def _masked(
        self, fresh: Sequence[tuple[Tail, Folded]], *, ends: bool
    ) -> Sequence[tuple[Folded, Masker | None] | None]:
        """New output with its secrets masked, and what goes on masking once it is kept; None for
        what has to wait. Of output with which that takes long less is read at once."""
        if self.masks is None:
            return [(new, None) for _, new in fresh]
        parts = [
            (self._owner(tail), partial(mask_next, tail.masker, new, ends=ends))
            for tail, new in fresh
        ]
        results = await asyncio.to_thread(self.turns.work, parts)
        for (tail, new), result in zip(fresh, results, strict=True):
            if result is not None:
                tail.read_bytes = next_read_bytes(tail.read_bytes, len(new.source), result[1])
        return [result and result[0] for result in results]

    async def _keep(
        self, fresh: Sequence[tuple[Tail, Folded]], *, ends: bool = False
    ) -> list[Tail]:
        """Keep and publish what is new of some outputs. Returns these, but for those that have to
        wait until they are masked."""
        now = self.clock.now()
        stored: list[PendingWrite] = []
        maskers: list[Masker | None] = []
        results = await self._masked(fresh, ends=ends)
        for (tail, _), result in zip(fresh, results, strict=True):
            if result is None:
                continue
            new, masker = result
            kept, full = domain.keep(tail.size, new.data, self.bounds.output_bytes_max)
            stored.append(PendingWrite(tail, new, kept, full, now))
            maskers.append(masker)
        writes = [each.write() for each in stored if each.data]
        if writes:
            await self.archive.write(writes, epoch=self.epoch)
        self.last_data_at = now
        for each, masker in zip(stored, maskers, strict=True):
            tail, new = each.tail, each.new
            tail.masker = masker
            tail.kept = (tail.kept + each.data[-LAST_BYTES:])[-LAST_BYTES:]
            if each.data:
                tail.timestamps += len(each.timestamps)
                tail.written_at = each.timestamps[-1].at
            tail.size += len(each.data)
            tail.skipped += new.skipped
            tail.last = (tail.last + new.source[-LAST_BYTES:])[-LAST_BYTES:]
            tail.full = each.full
            tail.line = new.line
            if domain.NEWLINE in new.data:
                tail.line_due_at = None
            self.state.unrecorded_bytes += len(each.data)
        if self.state.unrecorded_bytes >= self.bounds.record_bytes:
            self.record.set()
        await self._publish(stored, now)
        return [each.tail for each in stored]

    async def _keep_lines(self) -> None:
        """Keep states of lines that have been rewritten for long, and publish those of others."""
        now = self.clock.now()
        due: list[Tail] = []
        shown: list[Tail] = []
        for tail in self.state.tails.values():
            if tail.full or domain.RETURN not in tail.line:
                # It does not go on as a line that is rewritten: it may be the beginning of a
                # secret.
                continue
            if tail.line_due_at is None:
                tail.line_seconds = KEEP_LINE_SECONDS_MIN
                tail.line_due_at = now + timedelta(seconds=tail.line_seconds)
            elif now >= tail.line_due_at:
                tail.line_seconds = min(KEEP_LINE_SECONDS_MAX, 2 * tail.line_seconds)
                tail.line_due_at = now + timedelta(seconds=tail.line_seconds)
                due.append(tail)
                continue
            published_at = tail.line_published_at
            if tail.line != tail.line_published and (
                published_at is None
                or not 0 <= (now - published_at).total_seconds() < PUBLISH_LINE_SECONDS
            ):
                shown.append(tail)
        shown.sort(key=lambda tail: tail.line_published_at or domain.NEVER)
        await self._show_lines(self._in_turn(shown), now)
        if due:
            self.turns.begin()
            await self._keep([(tail, Folded(tail.line, tail.line)) for tail in self._in_turn(due)])

    async def _show_lines(self, tails: Sequence[Tail], now: datetime) -> None:
        """Publish the states of lines to live readers, as far as there is time to mask them."""
        lines: Sequence[bytes | None] = [tail.line for tail in tails]
        if self.masks is not None and tails:
            parts = [
                (self._owner(tail), partial(masked_whole, self.masks.forms_of(run), tail.line))
                for tail in tails
                for run in (_run_of(tail),)
            ]
            self.turns.begin()
            results = await asyncio.to_thread(self.turns.work, parts)
            lines = [result and result[0] for result in results]
        for tail, line in zip(tails, lines, strict=True):
            if line is not None:
                tail.line_published, tail.line_published_at = tail.line, now
                await self._send(_line_chunk(tail, line, now))

    async def _check_end(self, tail: Tail, result: ReadResult) -> None:
        """Nothing new after the exit is the end; what cannot be read is waited for, but not for
        ever, and the kept copy notes its absence."""
        key = tail.key
        if result.problem and result.problem != tail.problem:
            self.log.warning(
                "output cannot be read",
                task=key.task_id,
                attempt=key.attempt,
                rank=key.rank,
                problem=result.problem,
            )
        tail.problem = result.problem
        if tail.exited_at is None or result.data:
            return
        if result.problem or result.unsure:
            # The time without a collector does not count as waiting.
            waited = self._waited(max(tail.exited_at, tail.opened_at))
            if waited < self.bounds.unreadable_seconds_max and not result.lost:
                return
            await self._keep_unrecorded(tail)
            line = domain.gap_line(result.problem or "its source did not answer")
            # The former process may have written it and died before that was recorded.
            end = line[-LAST_BYTES:]
            if not (tail.last.endswith(end) or tail.kept.endswith(end)):
                new = Folded(tail.line + line, tail.line + line)
                if not await self._keep([(tail, new)], ends=True):
                    return
            self.log.error(
                "output is given up", task=key.task_id, attempt=key.attempt, rank=key.rank
            )
        elif tail.line:
            if not await self._keep([(tail, Folded(tail.line, tail.line))], ends=True):
                return
        else:
            await self._keep_unrecorded(tail)
        self._end(tail)

    async def _keep_unrecorded(self, tail: Tail) -> None:
        """Nothing follows, so what the process before kept and did not record can stay."""
        if tail.unrecorded_size:
            await self._take_over(tail, tail.unrecorded_size)
            await self._remember_last(tail)

    def _end(self, tail: Tail) -> None:
        if not tail.complete:
            tail.complete = True
            self.record.set()

    async def _publish(self, stored: Sequence[PendingWrite], now: datetime) -> None:
        """Publish to live readers, which can read what they miss by its range."""
        for each in stored:
            start, end = domain.newest(each.offset, each.data, self.bounds.live_bytes_max)
            for at, piece in domain.pieces(start, end, self.bounds.piece_bytes_max):
                stamps = domain.covering(each.timestamps, at, at + len(piece))
                if not await self._send(_chunk(each.tail, at, piece, stamps, now)):
                    return

    async def _send(self, envelope: Envelope) -> bool:
        try:
            await self.bus.send_telemetry(envelope)
        except BusError as error:
            self.log.info("live output is not published", problem=str(error))
            return False
        return True


def _places(row: RunRow) -> dict[OutputKey, Placement]:
    """The address of each rank of a run."""
    return {OutputKey(row.task_id, row.attempt, place.rank): place for place in row.placements}


def _folded(tail: Tail, result: ReadResult) -> Folded:
    tail.binary = tail.binary or not domain.is_text(result.data)
    folding = domain.without_folding if tail.binary else domain.fold
    return domain.fold_stamped(folding, tail.line, result.data, result.timestamps)


def _chunk(
    tail: Tail, offset: int, data: bytes, stamps: Sequence[Timestamp], now: datetime
) -> Envelope:
    """A piece of what is kept."""
    chunk_timestamps = tuple(LogTimestamp(offset=each.offset, at=each.at) for each in stamps)
    return _envelope(tail, f"{offset}", offset, now, data=data, timestamps=chunk_timestamps)


def _run_of(tail: Tail) -> Run:
    return tail.key.task_id, tail.key.attempt


def _line_chunk(tail: Tail, line: bytes, now: datetime) -> Envelope:
    """The state of the line that is being rewritten."""
    number = f"{tail.size}.line.{tail.skipped}"
    return _envelope(tail, number, tail.size, now, line=line)


def _envelope(
    tail: Tail,
    number: str,
    offset: int,
    now: datetime,
    *,
    data: bytes = b"",
    line: bytes = b"",
    timestamps: tuple[LogTimestamp, ...] = (),
) -> Envelope:
    key = tail.key
    return Envelope(
        id=f"{key.task_id}.{key.attempt}.{key.rank}.{number}",
        source=SERVICE,
        time=now,
        message=LogChunk(
            task_id=key.task_id,
            attempt=key.attempt,
            rank=key.rank,
            role=tail.role,
            offset=offset,
            data=data,
            collected_at=now,
            line=line,
            timestamps=timestamps,
        ),
    )
