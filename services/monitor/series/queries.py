"""Answers what was measured, from the blocks in memory and in the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.base import Message
from libs.contracts.messages import (
    FieldError,
    ReadSeries,
    ReadSeriesReply,
    ReadUtilization,
    ReadUtilizationReply,
    Refusal,
    RefusalCode,
    Series,
)
from libs.service.clock import time_of
from libs.service.definition import QueryHandler
from libs.store.port import Store, Tx, Where
from services.monitor.domain.blocks import (
    Block,
    BlockKey,
    Points,
    little_endian,
    node_subject,
    run_subject,
    runs_of,
)
from services.monitor.domain.reading import Name, SeriesLine, Window, node_lines, run_lines
from services.monitor.domain.resolution import Choice, choose
from services.monitor.series import store
from services.monitor.series.recorder import Recorder

# More than any run has.
RANKS_MAX = 2**31


@dataclass(frozen=True, slots=True)
class Answers:
    """How much one answer has."""

    # Of one series; of all together.
    points_max: int
    reply_points_max: int
    # Stored blocks that are read for it; above that a coarser step is read.
    blocks_max: int


@dataclass
class Queries:
    """The queries about series."""

    database: Store
    recorder: Recorder
    answers: Answers
    now: Callable[[], datetime]

    def table(self) -> Mapping[type[Message], QueryHandler]:
        """Return the handler of each query."""
        return {ReadSeries: self.read_series, ReadUtilization: self.read_utilization}

    async def read_utilization(self, query: ReadUtilization) -> ReadUtilizationReply:
        """The newest samples."""
        newest, now = self.recorder.newest, self.now()
        return ReadUtilizationReply(
            nodes=tuple(newest.of_nodes(query.node_ids, now)),
            tasks=tuple(newest.of_tasks(query.task_ids, now)),
        )

    async def read_series(self, query: ReadSeries) -> ReadSeriesReply:
        """Series of a node, or of as many ranks of a task as fit."""
        begins_s, ends_s = query.begins_at.timestamp(), query.ends_at.timestamp()
        if ends_s <= begins_s:
            text, fix = "is not after the beginning", "give an end after the beginning"
            return _refused("to", query.ends_at.isoformat(), text, fix)
        if bool(query.node_id) == bool(query.task_id):
            return _refused("node_id", query.node_id, "and task_id exclude each other", "give one")
        resolutions = self.recorder.resolutions
        least_s = query.step_seconds
        while True:
            choice = choose(
                resolutions,
                begins_s=begins_s,
                ends_s=ends_s,
                now_s=self.now().timestamp(),
                wanted_s=least_s,
                points_max=self.answers.points_max,
            )
            window = Window.of(begins_s, ends_s, choice.step_s)
            coarser = next((r.step_s for r in resolutions if r.step_s > choice.base_s), 0)
            async with self.database.transaction() as tx:
                lines = await self._lines(tx, query, choice, window)
            if lines is not None:
                break
            if not coarser:
                text = "is too long for so many ranks"
                return _refused("from", query.begins_at.isoformat(), text, "ask for fewer ranks")
            least_s = coarser
        return self._reply(lines, window)

    async def _lines(
        self, tx: Tx, query: ReadSeries, choice: Choice, window: Window
    ) -> dict[Name, SeriesLine] | None:
        """The series; None if too many blocks would be read."""
        signals = frozenset(query.signals)
        if query.node_id:
            subject = node_subject(query.node_id)
            blocks = await self._blocks(tx, store.of_subject(subject), {subject}, choice, window)
            return None if blocks is None else node_lines(query.node_id, blocks, window, signals)
        ranks = range(
            query.first_rank,
            query.first_rank + query.ranks_max if query.ranks_max else RANKS_MAX,
        )
        where = store.of_runs(query.task_id, query.attempt, ranks)
        runs = runs_of(query.task_id)
        only = run_subject(query.task_id, query.attempt) if query.attempt else runs
        in_memory = {
            place.subject for place in self.recorder.open if place.subject.startswith(only)
        }
        blocks = await self._blocks(tx, where, in_memory, choice, window)
        if blocks is None:
            return None
        nodes = {node_subject(block.place.part) for block in blocks if any(block.gpus.values())}
        of_nodes = await self._blocks(tx, store.of_subjects(nodes), nodes, choice, window)
        if of_nodes is None:
            return None
        by_place = {
            (block.place.subject.partition("/")[2], block.place.step_s, block.place.begins_s): block
            for block in of_nodes
        }
        return run_lines(blocks, by_place, window, signals, ranks)

    async def _blocks(
        self,
        tx: Tx,
        where: list[Where],
        in_memory: set[str],
        choice: Choice,
        window: Window,
    ) -> list[Block] | None:
        """The blocks of these rows at the chosen step, and the finer ones that are not in them."""
        ends_s = window.begins_s + window.count * window.step_s
        found: dict[BlockKey, Block] = {}
        for resolution in self.recorder.resolutions:
            if resolution.step_s > choice.base_s:
                break
            rows = await store.blocks_between(
                tx,
                where,
                resolution.step_s,
                window.begins_s,
                ends_s,
                unfolded=resolution.step_s < choice.base_s,
                limit=self.answers.blocks_max + 1,
            )
            found |= {store.place_of(row): store.block_of(row) for row in rows}
            if len(found) > self.answers.blocks_max:
                return None
        for place, opened in self.recorder.open.items():
            if place.subject in in_memory and place.begins_s < ends_s:
                if place in found:
                    # The copy in memory is newer; an earlier leader's points are in the other one.
                    found[place] = _united(opened.block, found[place])
                else:
                    found[place] = opened.block
        return list(found.values())

    def _reply(self, lines: dict[Name, SeriesLine], window: Window) -> ReadSeriesReply:
        """Whole ranks, as many as fit; at least one."""
        by_rank: dict[int, list[Name]] = {}
        for name, line in lines.items():
            if line.known:
                by_rank.setdefault(name.rank, []).append(name)
        chosen: list[Series] = []
        for rank in sorted(by_rank):
            names = sorted(by_rank[rank])
            points = (len(chosen) + len(names)) * window.count
            if chosen and points > self.answers.reply_points_max:
                return ReadSeriesReply(series=tuple(chosen), next_rank=rank)
            chosen += [_series(name, lines[name].points(), window) for name in names]
        return ReadSeriesReply(series=tuple(chosen))


def _series(name: Name, points: Points, window: Window) -> Series:
    return Series(
        signal=name.signal,
        rank=None if name.rank < 0 else name.rank,
        attempt=name.attempt,
        node_id=name.node_id,
        gpu=None if name.gpu < 0 else name.gpu,
        begins_at=time_of(window.begins_s),
        step_seconds=window.step_s,
        averages=little_endian(points.averages),
        minima=little_endian(points.lows),
        maxima=little_endian(points.highs),
    )


def _united(newer: Block, older: Block) -> Block:
    both = Block(newer.place)
    both.complete(newer)
    both.complete(older)
    return both


def _refused(field: str, value: str, message: str, fix: str) -> ReadSeriesReply:
    error = FieldError(field=field, value=value, message=message, fix=fix)
    return ReadSeriesReply(refusal=Refusal(code=RefusalCode.INVALID, errors=(error,)))
