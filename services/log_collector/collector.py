"""Copies ranks' output from the source to the archive, exactly once, and tells live readers.

``loop.py`` calls ``step`` again and again on the leader. What is copied counts only when the
recorder has synced it *and* its size is in the database. After a crash the copy goes on from that
size: bytes written beyond it are dropped and read again from the source, so none is lost and none
is doubled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from libs.bus.port import Bus, BusError
from libs.contracts.envelope import Envelope
from libs.contracts.messages import LogChunk, Placement
from libs.service.clock import Clock
from libs.service.loop import Wake
from libs.service.observe import log
from libs.store.port import Delta, Store
from services.log_collector import domain, store
from services.log_collector.archives.port import Archive, ArchiveError, Write
from services.log_collector.domain import Address, Bounds, IndexGrain, OutputKey, Pace
from services.log_collector.sources.port import Ask, Got, LogSource
from services.log_collector.state import SERVICE, Run, State, Tail, keys_of
from services.log_collector.store import OutputRow, RunRow


@dataclass
class Collector:
    """The copying of one leader."""

    database: Store
    bus: Bus
    clock: Clock
    source: LogSource
    archive: Archive
    bounds: Bounds
    grain: IndexGrain
    pace: Pace
    state: State
    # The recorder's: set when there is something that it should not wait with.
    record: Wake
    # Runs to take up at the next step, and what was known of their outputs when leading began.
    news: dict[Run, RunRow] = field(default_factory=dict)
    known: dict[Run, dict[int, OutputRow]] = field(default_factory=dict)
    last_data_at: datetime | None = None

    def __post_init__(self) -> None:
        self.log = log(SERVICE)

    def notice(self, delta: Delta) -> bool:
        """Note what a commit changed about runs; True if that is something to act on."""
        news = [row for row in delta.put if isinstance(row, RunRow) and not row.collected]
        self.news.update({(row.task_id, row.attempt): row for row in news})
        return bool(news)

    async def lead(self, epoch: int) -> None:
        """Begin as a new leader: note what the database knows; the first step takes it up."""
        self.state.clear()
        async with self.database.transaction(epoch=epoch) as tx:
            runs = {(row.task_id, row.attempt): row for row in await store.open_runs(tx)}
            self.known = {run: await store.outputs_of(tx, *run) for run in runs}
        self.news = runs

    async def step(self, epoch: int) -> float | None:
        """One pass over all outputs; returns in how many seconds the next one is due."""
        del epoch  # every leader copies the same bytes to the same places
        try:
            await self._take_up()
            more = await self._copy()
        except ArchiveError as error:
            self.log.warning("output cannot be kept now", problem=str(error))
            return self.bounds.retry_seconds
        quiet = self.pace.linger
        if self.last_data_at is not None:
            quiet = (self.clock.now() - self.last_data_at).total_seconds()
        outputs = len(self.state.tails)
        return domain.next_look(self.pace, outputs=outputs, more=more, quiet_seconds=quiet)

    async def _take_up(self) -> None:
        """Open the outputs of runs that are new, and note the exits of others."""
        news = list(self.news.items())
        keys = [key for _, row in news for key in keys_of(row) if key not in self.state.tails]
        # One question for all of them: runs may start by the hundred.
        sizes = dict(zip(keys, await self.archive.sizes(keys), strict=True)) if keys else {}
        for run, row in news:
            await self._open(row, self.known.get(run, {}), sizes)
            self.known.pop(run, None)
            if self.news.get(run) is row:
                del self.news[run]

    async def _open(
        self, row: RunRow, known: dict[int, OutputRow], sizes: Mapping[OutputKey, int]
    ) -> None:
        """Take up a run's outputs, or note that they will grow no more. ``sizes``: what is kept of
        those that are new."""
        tails = self.state.tails
        for placement in row.placements:
            key = OutputKey(row.task_id, row.attempt, placement.rank)
            if key not in tails:
                kept = sizes[key] if key in sizes else await self.archive.size(key)
                tails[key] = await self._tail(key, placement, known.get(placement.rank), kept)
            tails[key].exited_at = row.exited_at
        self.state.runs[row.task_id, row.attempt] = row
        self.record.set()

    async def _tail(
        self, key: OutputKey, placement: Placement, known: OutputRow | None, kept: int
    ) -> Tail:
        recorded = known.size if known else 0
        tail = Tail(Address(key, placement.node_id), placement.role, recorded, recorded)
        if known is not None:
            tail.full = known.full
            tail.complete = tail.closed = known.complete
        if not tail.complete:
            await self._recover(tail, kept)
        return tail

    async def _recover(self, tail: Tail, kept: int) -> None:
        """Make the kept copy what the database says it is: go on from there.

        Where the source cannot give the bytes beyond again, they are the only copy and stay. What
        the archive has lost is read again.
        """
        if kept > tail.recorded:
            (got,) = await self.source.read([Ask(tail.address, tail.recorded, 1)], 1)
            if got is not None and got.data:
                await self.archive.truncate(tail.key, tail.recorded)
            else:
                tail.size = kept
        elif kept < tail.recorded:
            self.log.error("kept output is shorter than it was", kept=kept, was=tail.recorded)
            tail.size, tail.full = min(kept, self.bounds.output_bytes_max), False

    async def _copy(self) -> bool:
        """Read what is new, keep it, tell live readers. True if there is more to read at once."""
        tails = self.state.tails
        asking = [tail for tail in tails.values() if not (tail.complete or tail.full)]
        asks = [Ask(tail.address, tail.size, self.bounds.read_bytes_max) for tail in asking]
        answers: Sequence[Got | None] = ()
        if asks:
            answers = await self.source.read(asks, self.bounds.pass_bytes_max)
        found = [(tail, got) for tail, got in zip(asking, answers, strict=True) if got is not None]
        fresh = [(tail, got.data) for tail, got in found if got.data]
        if fresh:
            await self._keep(fresh)
        for tail, got in found:
            self._judge_end(tail, got)
        for tail in tails.values():
            # Nothing is kept beyond the limit, so the exit is the end.
            if tail.full and tail.exited_at is not None:
                self._end(tail)
        for tail, _ in fresh:  # the next pass begins with the others
            tails[tail.key] = tails.pop(tail.key)
        return len(found) < len(asking) or any(
            len(data) >= self.bounds.read_bytes_max for _, data in fresh
        )

    async def _keep(self, fresh: Sequence[tuple[Tail, bytes]]) -> None:
        now = self.clock.now()
        kept = [
            (tail, *domain.keep(tail.size, data, self.bounds.output_bytes_max))
            for tail, data in fresh
        ]
        await self.archive.write([Write(tail.key, tail.size, data) for tail, data, _ in kept])
        self.last_data_at = now
        told = [(tail, tail.size, data) for tail, data, _ in kept]
        for tail, data, full in kept:
            tail.entry = domain.index(tail.entry, tail.size, now, self.grain)
            tail.changed[tail.entry.offset] = tail.entry
            tail.size += len(data)
            tail.full = full
            self.state.unrecorded_bytes += len(data)
        if self.state.unrecorded_bytes >= self.bounds.record_bytes:
            self.record.set()
        await self._tell(told, now)

    def _judge_end(self, tail: Tail, got: Got) -> None:
        """Nothing new after the exit is the end; what cannot be read is waited for, but not for
        ever."""
        if got.problem and got.problem != tail.problem:
            self.log.warning(
                "output cannot be read",
                task=tail.key.task_id,
                attempt=tail.key.attempt,
                rank=tail.key.rank,
                problem=got.problem,
            )
        tail.problem = got.problem
        if tail.exited_at is not None and not got.data:
            waited = (self.clock.now() - tail.exited_at).total_seconds()
            if not got.problem or waited >= self.bounds.unreadable_seconds_max:
                self._end(tail)

    def _end(self, tail: Tail) -> None:
        if not tail.complete:
            tail.complete = True
            self.record.set()

    async def _tell(self, told: Sequence[tuple[Tail, int, bytes]], now: datetime) -> None:
        """Live readers get what they can; what they miss they read by its range."""
        try:
            for tail, offset, data in told:
                start, end = domain.newest(offset, data, self.bounds.live_bytes_max)
                for at, piece in domain.pieces(start, end, self.bounds.piece_bytes_max):
                    await self.bus.tell(_chunk(tail, at, piece, now))
        except BusError as error:
            self.log.info("live readers are not told", problem=str(error))


def _chunk(tail: Tail, offset: int, data: bytes, now: datetime) -> Envelope:
    key = tail.key
    return Envelope(
        id=f"{key.task_id}.{key.attempt}.{key.rank}.{offset}",
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
        ),
    )
