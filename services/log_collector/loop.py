"""log-collector's loops: copy what is new, record it, drop what is old. Wired in ``main.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from libs.service.loop import Loop, Wake
from libs.service.prune import NumberCutoff, PruneCutoff, failed, pruned, will_prune
from libs.store.port import Delta, Store, StoreUnavailableError, Tx
from services.log_collector import store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.collector import Collector
from services.log_collector.recorder import Recorder
from services.log_collector.state import SERVICE, keys_of
from services.log_collector.store import RunRow

# Without a live output there is nothing to scan until a commit adds one.
NOTHING_OPEN_TICK_SECONDS = 60.0
# What the metrics of pruning call the runs that are dropped.
RUNS = "runs"


def copy_loop(database: Store, collector: Collector) -> Loop:
    """Copies output; woken by commits that concern runs, otherwise at its own pace."""
    wake = Wake()

    def on_commit(delta: Delta) -> None:
        if collector.on_commit(delta):
            wake.set()

    database.observe(on_commit)
    return Loop(
        name="copy",
        step=collector.step,
        tick_seconds=NOTHING_OPEN_TICK_SECONDS,
        wake=wake,
        wake_on_commit=False,
    )


def record_loop(recorder: Recorder) -> Loop:
    """Makes what was copied count; woken when an output is complete or much has come."""
    return Loop(
        name="record",
        step=recorder.step,
        tick_seconds=NOTHING_OPEN_TICK_SECONDS,
        wake=recorder.wake,
        wake_on_commit=False,
    )


@dataclass(frozen=True, slots=True)
class OutputPruner:
    """Drops the output of runs that ended long ago, or before very many others."""

    database: Store
    archive: Archive
    keep: timedelta
    runs_max: int
    rows_max: int
    cutoff: PruneCutoff
    number: NumberCutoff
    bytes_per_owner_max: int
    # Held while outputs of ended runs change, also by the loop that seals them.
    ended: asyncio.Lock

    def __post_init__(self) -> None:
        will_prune(SERVICE, RUNS)

    async def step(self, epoch: int) -> float | None:
        """Drop one batch of runs: each one's files first, then its rows in small transactions, the
        run's own row last, so that a crash in between is repaired by the next step."""
        await self.number.count(self.database, store.nth_newest_exit)
        async with self.ended:
            return await self._step(epoch)

    async def _step(self, epoch: int) -> float | None:
        async with self.database.transaction(epoch=epoch) as tx:
            rows = await self._too_old(tx)
            beyond: Sequence[RunRow] = ()
            if not rows:
                beyond = await store.runs_beyond(tx, self.bytes_per_owner_max, self.runs_max)
                rows = beyond
        if not rows:
            return None
        try:
            for row in rows:
                await self.archive.remove(keys_of(row))
                await self._drop(row, epoch)
        except (ArchiveError, StoreUnavailableError) as problem:
            failed(SERVICE, RUNS, problem)
            return None
        pruned(SERVICE, RUNS, len(rows))
        # There may be more of that age, or another owner with too many bytes.
        return 0.0 if beyond or len(rows) == self.runs_max else None

    async def _too_old(self, tx: Tx) -> Sequence[RunRow]:
        """Runs that ended before the cutoffs by age and number."""
        oldest, wanted = await store.oldest_exit(tx), tx.now - self.keep
        if oldest is None:
            self.cutoff.before(None, wanted)
            return ()
        cutoffs = (
            self.cutoff.before(oldest, wanted),
            self.number.before,
        )
        before = max((each for each in cutoffs if each is not None), default=oldest)
        if oldest >= before:
            return ()
        return await store.runs_to_drop(tx, before, self.runs_max)

    async def _drop(self, row: RunRow, epoch: int) -> None:
        rank: int | None = 0
        while rank is not None:
            async with self.database.transaction(epoch=epoch) as tx:
                rank = await store.drop_part(tx, row, rank, self.rows_max)


def drop_loop(pruner: OutputPruner, tick_seconds: float) -> Loop:
    """Drops old output now and then."""
    return Loop(name="drop", step=pruner.step, tick_seconds=tick_seconds, wake_on_commit=False)
