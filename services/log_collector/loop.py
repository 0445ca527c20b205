"""log-collector's loops: copy what is new, record it, drop what is old. Wired in ``main.py``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from libs.service.clock import Clock
from libs.service.loop import Loop, Wake
from libs.service.observe import log
from libs.store.port import Delta, Store
from services.log_collector import store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.collector import Collector
from services.log_collector.recorder import Recorder
from services.log_collector.state import SERVICE, keys_of

# Without a live output there is nothing to look at until a commit brings one.
NOTHING_OPEN_TICK_SECONDS = 60.0


def copy_loop(database: Store, collector: Collector) -> Loop:
    """Copies output; woken by commits that concern runs, otherwise at its own pace."""
    wake = Wake()

    def notice(delta: Delta) -> None:
        if collector.notice(delta):
            wake.set()

    database.observe(notice)
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
class Dropping:
    """Forgets the output of runs that ended long ago."""

    database: Store
    archive: Archive
    clock: Clock
    keep: timedelta
    runs_max: int

    async def step(self, epoch: int) -> float | None:
        """Drop one batch: the files first, so that a crash in between is repaired by the next."""
        before = self.clock.now() - self.keep
        async with self.database.transaction(epoch=epoch) as tx:
            rows = await store.runs_to_drop(tx, before, self.runs_max)
        try:
            for row in rows:
                await self.archive.remove(keys_of(row))
        except ArchiveError as error:
            log(SERVICE).warning("old output cannot be dropped now", problem=str(error))
            return None
        for row in rows:
            async with self.database.transaction(epoch=epoch) as tx:
                await store.drop_run(tx, row)
        return 0.0 if len(rows) == self.runs_max else None


def drop_loop(dropping: Dropping, tick_seconds: float) -> Loop:
    """Drops old output now and then."""
    return Loop(name="drop", step=dropping.step, tick_seconds=tick_seconds, wake_on_commit=False)
