"""Finds the last error lines of runs that failed, once their output is complete, and publishes
them. Run as a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from libs.contracts.messages import ErrorLinesFound, RankErrorLines
from libs.service.loop import Loop, Wake
from libs.service.observability import log
from libs.store.port import Delta, Store
from services.log_collector import error_lines, store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.domain import OutputKey
from services.log_collector.error_lines import ErrorPatterns, ErrorSearch
from services.log_collector.state import SERVICE
from services.log_collector.store import RunRow

# Runs of one step.
RUNS_AT_ONCE = 20
TICK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ErrorFinder:
    """The search for error lines of one leader."""

    database: Store
    archive: Archive
    patterns: ErrorPatterns
    limits: ErrorSearch

    async def step(self, epoch: int) -> float | None:
        """Search the runs that are due; the database notes each with what was found."""
        async with self.database.transaction() as tx:
            rows = await store.runs_to_search(tx, RUNS_AT_ONCE)
        for row in rows:
            found = await self._of_run(row)
            async with self.database.transaction(epoch=epoch) as tx:
                now = await tx.get(RunRow, row.task_id, row.attempt)
                if now is None or not now.errors_wanted:
                    continue
                tx.put(replace(now, errors_wanted=False, error_ranks=()))
                if found:
                    tx.emit(
                        ErrorLinesFound(
                            task_id=row.task_id,
                            attempt=row.attempt,
                            ranks=tuple(found),
                            found_at=tx.now,
                        )
                    )
        return 0.0 if len(rows) == RUNS_AT_ONCE else None

    async def _of_run(self, row: RunRow) -> Sequence[RankErrorLines]:
        limits = self.limits
        found: list[RankErrorLines] = []
        places = {place.rank: place for place in row.placements}
        left = limits.error_characters_max
        async with self.database.transaction() as tx:
            known = await store.outputs_of(tx, row.task_id, row.attempt)
        for rank in row.error_ranks[: limits.error_search_ranks_max]:
            try:
                size = known[rank].size if rank in known else 0
                lines = await self._of_rank(OutputKey(row.task_id, row.attempt, rank), size)
            except ArchiveError as problem:
                # What is known of the other ranks is worth more than to wait for this one.
                log(SERVICE).warning(
                    "output is not searched for error lines",
                    task=row.task_id,
                    attempt=row.attempt,
                    rank=rank,
                    problem=str(problem),
                )
                continue
            kept = error_lines.message_of(places[rank], lines, left)
            if kept is not None:
                found.append(kept)
                left -= sum(len(line) + 1 for line in kept.lines)
            if len(found) >= limits.error_ranks_max or left <= 0:
                break
        return found

    async def _of_rank(self, key: OutputKey, size: int) -> Sequence[error_lines.ErrorLine]:
        begin = max(0, size - self.limits.error_search_bytes)
        data = await self.archive.read(key, begin, size - begin)
        return await asyncio.to_thread(error_lines.find, data, begin, self.patterns, self.limits)


def error_loop(database: Store, finder: ErrorFinder) -> Loop:
    """Searches runs whose output is complete; woken by the commit that notes it."""
    wake = Wake()

    def on_commit(delta: Delta) -> None:
        if any(
            isinstance(row, RunRow) and row.collected and row.errors_wanted for row in delta.put
        ):
            wake.set()

    database.observe(on_commit)
    return Loop(
        name="errors",
        step=finder.step,
        tick_seconds=TICK_SECONDS,
        wake=wake,
        wake_on_commit=False,
    )
