"""Makes copied output durable: syncs it, then records the sizes, a batch of outputs in each
transaction.

A loop of its own beside the collector's, because a disk may take seconds to sync a thousand files
and live readers must not wait for it; nor for a transaction with the rows of a thousand outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from libs.service.clock import Clock
from libs.service.loop import Wake
from libs.service.observability import log
from libs.store.port import Store, Tx
from services.log_collector import store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.domain import TIMESTAMP_BYTES, Bounds, OutputKey
from services.log_collector.sources.port import LogSource, Stored
from services.log_collector.state import SERVICE, State, Tail, keys_of
from services.log_collector.store import OutputRow, RunRow

# Beyond every offset.
NO_MORE = 2**62
# One transaction records so many outputs: making its rows keeps the event loop for milliseconds.
OUTPUTS_MAX = 128
# A tail, and its state as a row.
Noted = tuple[Tail, OutputRow]


@dataclass
class Recorder:
    """The recording of one leader."""

    database: Store
    clock: Clock
    archive: Archive
    source: LogSource
    bounds: Bounds
    state: State
    # Set by the collector when an output is complete or much is unrecorded.
    wake: Wake
    # The sealer's: set when an output that is written has a whole segment more.
    seal: Wake
    # Of all that have work when a run is collected.
    collected: Sequence[Wake]
    recorded_at: datetime | None = None

    async def step(self, epoch: int) -> float | None:
        """Record what is due; returns in how many seconds to call again."""
        try:
            await self._record(epoch)
        except ArchiveError as error:
            log(SERVICE).warning("kept output cannot be synced now", problem=str(error))
            return self.bounds.retry_seconds
        return self.bounds.record_seconds if self.state.tails else None

    async def _record(self, epoch: int) -> None:
        now, state = self.clock.now(), self.state
        finished = state.finished()
        ended = any(tail.complete and not tail.closed for tail in state.tails.values())
        if not (finished or ended or self._is_due(now)):
            return
        noted = [_noted(tail, now) for tail in state.tails.values() if tail.is_due]
        # What comes while this waits for the disk is for the next time.
        state.unrecorded_bytes = 0
        moved = [tail for tail, row in noted if tail.shrunk or row.size != tail.recorded]
        await self.archive.sync([tail.key for tail in moved])
        rest = iter(noted)
        while batch := list(islice(rest, OUTPUTS_MAX)):
            await self._commit(batch, epoch)
        if finished:
            async with self.database.transaction(epoch=epoch) as tx:
                for row in finished:
                    await _collect(tx, row, state)
        self.recorded_at = now
        for row in finished:
            state.close(row)
        whole = self.archive.segment_bytes
        if any(tail.recorded // whole > tail.sealed for tail in state.tails.values()):
            self.seal.set()
        for wake in self.collected if finished else ():
            wake.set()

    async def _commit(self, noted: Sequence[Noted], epoch: int) -> None:
        """Make what is synced of some outputs count, and report it to the source."""
        async with self.database.transaction(epoch=epoch) as tx:
            for _, row in noted:
                tx.put(row)
        for tail, row in noted:
            tail.mark_recorded(row)
        # Of a full output nothing more is wanted, however much comes.
        await self.source.stored(
            [
                Stored(
                    tail.address, NO_MORE if row.full else row.size + row.skipped, done=row.complete
                )
                for tail, row in noted
            ]
        )

    def _is_due(self, now: datetime) -> bool:
        if self.state.unrecorded_bytes >= self.bounds.record_bytes or self.recorded_at is None:
            return True
        waited = (now - self.recorded_at).total_seconds()
        return not 0 <= waited < self.bounds.record_seconds


async def _collect(tx: Tx, row: RunRow, state: State) -> None:
    """Note that all of a run is kept, and count it for its owner; at most once, also where the
    answer to an earlier commit is not known."""
    known = await tx.get(RunRow, row.task_id, row.attempt)
    if known is not None and known.collected:
        return
    tails = [state.tails[key] for key in keys_of(row)]
    size = sum(tail.size + tail.timestamps * TIMESTAMP_BYTES for tail in tails)
    tx.put(replace(row, collected=True, stored_bytes=size))
    await store.add_to_owner(tx, row.owner, size)


def _noted(tail: Tail, now: datetime) -> Noted:
    """The current state of a tail, as a row."""
    key: OutputKey = tail.key
    row = OutputRow(
        task_id=key.task_id,
        attempt=key.attempt,
        rank=key.rank,
        size=tail.size,
        full=tail.full,
        complete=tail.complete,
        recorded_at=now,
        skipped=tail.skipped,
        before=tail.before if tail.skipped or tail.masker is not None else b"",
        binary=tail.binary,
        timestamps=tail.timestamps,
    )
    return tail, row
