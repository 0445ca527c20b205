"""Handlers of log-collector's events and queries. Wired in ``main.py``.

Events only record which ranks write where and which have ended; the collector acts. Queries read
the kept copy, including what is not recorded yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from libs.contracts.base import Message
from libs.contracts.messages import (
    FieldError,
    ListLogs,
    ListLogsReply,
    LogInfo,
    LogTimestamp,
    ReadLog,
    ReadLogReply,
    Refusal,
    RefusalCode,
    RunExited,
    RunStarted,
)
from libs.service.definition import CommandHandler, Handler, Reads
from libs.store.port import Tx
from services.log_collector import domain, error_lines, store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.domain import Answers, OutputKey
from services.log_collector.state import State
from services.log_collector.store import OutputRow, RunRow
from services.log_collector.write_times import Output, Times, WriteTimes

LAST_LINES_BLOCK = 65_536


async def on_run_started(tx: Tx, event: RunStarted) -> None:
    """Note the run; its output is collected from the first byte, whenever this arrives."""
    if await tx.get(RunRow, event.task_id, event.attempt) is None:
        tx.put(
            RunRow(
                event.task_id,
                event.attempt,
                event.placements,
                exited_at=None,
                collected=False,
                owner=event.owner,
            )
        )


async def on_run_exited(tx: Tx, event: RunExited) -> None:
    """Record the exit. Nothing is lost if no start of the run was received."""
    row = await tx.get(RunRow, event.task_id, event.attempt)
    if row is None:
        placements = event.placements
        row = RunRow(event.task_id, event.attempt, placements, exited_at=None, collected=False)
        row = replace(row, owner=event.owner)
    if row.exited_at is None:
        ranks = error_lines.ranks_to_search(event.exit, row.placements)
        tx.put(
            replace(
                row,
                exited_at=event.exit.exited_at,
                errors_wanted=bool(ranks),
                error_ranks=ranks,
            )
        )


def _row_of(event: RunStarted | RunExited) -> list[tuple[Any, ...]]:
    return [(RunRow, event.task_id, event.attempt)]


READS: Mapping[type[Message], Reads] = {RunStarted: _row_of, RunExited: _row_of}
HANDLERS: Mapping[type[Message], Handler] = {
    RunStarted: on_run_started,
    RunExited: on_run_exited,
}


@dataclass(frozen=True, slots=True)
class Queries:
    """log-collector's queries with what they read from and are bounded by."""

    state: State
    archive: Archive
    times: Times
    answers: Answers

    def table(self) -> Mapping[type[Message], CommandHandler]:
        """Which query is answered by which function."""
        return {ReadLog: self.read_log, ListLogs: self.list_logs}

    async def read_log(self, tx: Tx, query: ReadLog) -> ReadLogReply:
        """A range of one rank's output. Attempt 0 is the newest one."""
        row = await self._run(tx, query)
        if row is None or all(query.rank != place.rank for place in row.placements):
            return ReadLogReply(refusal=_unknown(query))
        key = OutputKey(row.task_id, row.attempt, query.rank)
        known = await tx.get(OutputRow, key.task_id, key.attempt, key.rank)
        size, stamps = self.state.size_of(key), self.state.timestamps_of(key)
        if size is None or stamps is None:
            size, stamps = (known.size, known.timestamps) if known else (0, 0)
        kept = Output(key, size, stamps)
        times = self.times.within(tx)
        wanted = query.max_bytes if query.max_bytes > 0 else self.answers.reply_bytes_max
        try:
            before = size if query.before <= 0 else min(size, query.before)
            if query.until is not None:
                before = min(before, await times.first_at(kept, query.until))
            start = await self._start(times, query, kept, before)
            end = min(before, start + min(wanted, self.answers.reply_bytes_max))
            written = WriteTimes(())
            if query.timestamps and start < end:
                most = self.answers.reply_timestamps_max
                written = await times.stamps(kept, start, end, most)
                end = written.end or end
            data = await self.archive.read(key, start, end - start) if start < end else b""
        except ArchiveError as error:
            return ReadLogReply(
                refusal=Refusal(
                    code=RefusalCode.UNAVAILABLE, detail=f"the log cannot be read now: {error}"
                )
            )
        return ReadLogReply(
            offset=start,
            data=data,
            size=size,
            complete=bool(known and known.complete and known.size == size),
            timestamps=tuple(LogTimestamp(offset=e.offset, at=e.at) for e in written.timestamps),
            approximate=written.approximate,
        )

    async def list_logs(self, tx: Tx, query: ListLogs) -> ListLogsReply:
        """The outputs of a task; none if no run of it is known. Of very many, the newest ones."""
        logs: list[LogInfo] = []
        for row in await store.newest_runs(tx, query.task_id, self.answers.list_runs_max):
            if logs and len(logs) + len(row.placements) > self.answers.list_outputs_max:
                break
            known = await store.outputs_of(tx, row.task_id, row.attempt)
            logs += [self._info(row, index, known) for index in range(len(row.placements))]
        logs.sort(key=lambda info: (info.attempt, info.rank))
        return ListLogsReply(logs=tuple(logs[: self.answers.list_outputs_max]))

    def _info(self, row: RunRow, index: int, known: Mapping[int, OutputRow]) -> LogInfo:
        place = row.placements[index]
        recorded = known.get(place.rank)
        size = self.state.size_of(OutputKey(row.task_id, row.attempt, place.rank))
        if size is None:
            size = recorded.size if recorded else 0
        return LogInfo(
            attempt=row.attempt,
            rank=place.rank,
            role=place.role,
            size=size,
            complete=bool(recorded and recorded.complete),
            placement=place,
        )

    async def _run(self, tx: Tx, query: ReadLog) -> RunRow | None:
        if query.attempt:
            return await tx.get(RunRow, query.task_id, query.attempt)
        newest = await store.newest_runs(tx, query.task_id, 1)
        return newest[0] if newest else None

    async def _start(self, times: Times, query: ReadLog, kept: Output, before: int) -> int:
        """The first byte of the answer: by lines from the end, by time, or by offset."""
        if query.tail_lines > 0:
            return await self._last_lines(kept.key, before, query.tail_lines)
        if query.since is not None:
            return await times.first_at(kept, query.since)
        return domain.start_of_range(query.offset, kept.size)

    async def _last_lines(self, key: OutputKey, size: int, lines: int) -> int:
        """The offset of the last so many lines, searched at most so far back."""
        wanted = min(lines, self.answers.tail_lines_max)
        lowest = max(0, size - self.answers.tail_bytes_max)
        end, block = b"", LAST_LINES_BLOCK
        start = size
        while start > lowest:
            before, start = start, max(lowest, start - block)
            end = await self.archive.read(key, start, before - start) + end
            found = domain.start_of_last_lines(end, wanted)
            if found is not None:
                return start + found
            block *= 2
        return lowest


def _unknown(query: ReadLog) -> Refusal:
    run = f"attempt {query.attempt}" if query.attempt else "any attempt"
    detail = f"no output of rank {query.rank} of {run} of task {query.task_id} is known"
    error = FieldError(
        field="rank",
        value=str(query.rank),
        message=detail,
        fix="list a task's outputs with ListLogs; a run that has not started has none",
    )
    return Refusal(code=RefusalCode.NOT_FOUND, detail=detail, errors=(error,))
