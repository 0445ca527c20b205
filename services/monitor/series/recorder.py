"""Records samples: takes them from the bus, keeps the newest blocks in memory, writes them, and
folds complete ones into coarser ones.

Only the leader records. What has not been written when it dies is lost: a gap of
``series_write_seconds`` at most. A block that was begun by an earlier leader is read before it is
written again.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from libs.bus.port import Bus, BusError
from libs.contracts.base import Message
from libs.contracts.messages import NodeSampled
from libs.contracts.subjects import filter_of
from libs.service import observability
from libs.service.loop import Backoff, Loop
from libs.service.metrics import Metrics
from libs.store.port import Store
from services.monitor.activities import Activities
from services.monitor.domain.blocks import (
    POINTS,
    Block,
    BlockKey,
    SignalKey,
    begin_of,
    node_subject,
    run_subject,
)
from services.monitor.domain.newest import Newest
from services.monitor.domain.resolution import Resolution
from services.monitor.series import store
from services.monitor.series.store import SeriesRow

SERVICE = "monitor"
declare = Metrics("monitor")
TAKEN = declare.counter("shiftwork_monitor_samples_total", "Samples of nodes that were recorded")
DROPPED = declare.counter(
    "shiftwork_monitor_samples_dropped_total",
    "Samples that were left out",
    ["why"],
)
WRITTEN = declare.counter("shiftwork_monitor_series_rows_total", "Rows of series that were written")
OPEN = declare.gauge("shiftwork_monitor_series_open", "Blocks of series that are kept in memory")
# A block is folded this many write intervals after its end: what is late has arrived by then.
FOLD_AFTER_WRITES = 2
FOLDED_AT_ONCE = 50
TICK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept in memory, and how often it is written."""

    write_seconds: float
    rows_at_once: int
    blocks_max: int


@dataclass
class OpenBlock:
    """A block in memory. ``due_s``: when it is written next."""

    block: Block
    due_s: float
    dirty: bool = False
    # What an earlier leader wrote of it is in it.
    stored: bool = False


@dataclass
class Recorder:
    """One leader's records."""

    bus: Bus
    database: Store
    now: Callable[[], datetime]
    resolutions: Sequence[Resolution]
    bounds: Bounds
    newest: Newest
    activities: Activities
    open: dict[BlockKey, OpenBlock] = field(default_factory=dict[BlockKey, OpenBlock])
    leading: bool = False

    async def lead(self, _epoch: int) -> None:
        """Begin without blocks: those of an earlier leader are in the database."""
        self.open.clear()
        self.newest.clear()
        self.activities.clear()
        self.leading = True

    def lead_no_longer(self) -> None:
        """Another process records from now on."""
        self.leading = False
        self.open.clear()
        self.newest.clear()
        self.activities.clear()

    async def listen(self) -> None:
        """Take samples until the service stops."""
        backoff = Backoff()
        while True:
            try:
                async with self.bus.listen(filter_of(NodeSampled)) as passing:
                    backoff.reset()
                    async for envelope in passing:
                        self._take_safely(envelope.message)
            except BusError as problem:
                observability.log(SERVICE).warning("no samples arrive", problem=str(problem))
            await backoff.wait()

    def _take_safely(self, sample: Message) -> None:
        try:
            self.take(sample)
        except Exception:  # noqa: BLE001 - a sample that cannot be entered harms no other
            DROPPED.labels("error").inc()
            observability.log(SERVICE).exception("a sample cannot be entered")

    def take(self, sample: Message) -> None:
        """Enter one sample. A time that no block may have is left out."""
        if not self.leading or not isinstance(sample, NodeSampled):
            return
        step_s, at_s, now_s = self._step_s, sample.sampled_at.timestamp(), self._now_s
        if not -self._late_s <= at_s - now_s <= step_s:
            DROPPED.labels("time").inc()
            return
        TAKEN.inc()
        self.newest.take(sample)
        self.activities.take(sample)
        values: dict[SignalKey, float] = {
            SignalKey(name): value for name, value in sample.values if value is not None
        }
        for gpu in sample.gpus:
            values |= {
                SignalKey(name, gpu.index): value for name, value in gpu.values if value is not None
            }
        if values:
            self._put(node_subject(sample.node_id), "", at_s, values, {})
        runs: dict[str, tuple[dict[SignalKey, float], dict[int, tuple[int, ...]]]] = {}
        for rank in sample.ranks:
            subject = run_subject(rank.task_id, rank.attempt)
            numbers, gpus = runs.setdefault(subject, ({}, {}))
            numbers |= {
                SignalKey(name, rank.rank): value
                for name, value in rank.values
                if value is not None
            }
            gpus[rank.rank] = rank.gpus
        for subject, (numbers, gpus) in runs.items():
            self._put(subject, sample.node_id, at_s, numbers, gpus)
        OPEN.set(len(self.open))

    def _put(
        self,
        subject: str,
        part: str,
        at_s: float,
        values: dict[SignalKey, float],
        gpus: dict[int, tuple[int, ...]],
    ) -> None:
        place = BlockKey(subject, part, self._step_s, begin_of(self._step_s, at_s))
        found = self.open.get(place)
        if found is None:
            if len(self.open) >= self.bounds.blocks_max:
                DROPPED.labels("too many series").inc()
                return
            found = self.open[place] = OpenBlock(Block(place), self._now_s + self._spread_s(place))
        found.block.put(at_s, values)
        found.block.gpus |= gpus
        found.dirty = True

    def _spread_s(self, place: BlockKey) -> float:
        """Blocks are not all written at the same moment."""
        share = zlib.crc32(f"{place.subject}{place.part}".encode()) / 2**32
        return share * self.bounds.write_seconds

    # Loops

    def loops(self) -> tuple[Loop, ...]:
        """All loops."""
        return (
            Loop("write-series", self.write, tick_seconds=TICK_SECONDS, wake_on_commit=False),
            Loop(
                "fold-series",
                self.fold,
                tick_seconds=self.bounds.write_seconds,
                wake_on_commit=False,
            ),
        )

    async def write(self, epoch: int) -> float | None:
        """Write the blocks that are due, those first that wait longest; forget what is over."""
        now_s = self._now_s
        due = sorted(
            (each for each in self.open.values() if each.dirty and self._is_due(each, now_s)),
            key=lambda each: each.due_s,
        )
        batch = due[: self.bounds.rows_at_once]
        if batch:
            await self._write(batch, epoch)
        for place, each in tuple(self.open.items()):
            if not each.dirty and place.ends_s + self._late_s < now_s:
                del self.open[place]
        OPEN.set(len(self.open))
        return 0.0 if len(due) > len(batch) else None

    def _is_due(self, each: OpenBlock, now_s: float) -> bool:
        return each.due_s <= now_s or each.block.place.ends_s + self._step_s < now_s

    async def _write(self, batch: Sequence[OpenBlock], epoch: int) -> None:
        keep_s = self.resolutions[0].keep_s
        try:
            async with self.database.transaction(epoch=epoch) as tx:
                begun = [each.block.place for each in batch if not each.stored]
                await tx.load(SeriesRow, *(store.key_of(place) for place in begun))
                for each in batch:
                    if not each.stored:
                        each.block.complete(await store.block_at(tx, each.block.place))
                    tx.put(store.row_of(each.block, keep_s))
                    # What arrives during the commit makes it dirty again.
                    each.dirty = False
        except BaseException:
            for each in batch:
                each.dirty = True
            raise
        for each in batch:
            each.stored = True
            each.due_s = self._now_s + self.bounds.write_seconds
        WRITTEN.inc(len(batch))

    async def fold(self, epoch: int) -> float | None:
        """Fold complete blocks of each step into the blocks of the next coarser one."""
        more = False
        for fine, coarse in itertools.pairwise(self.resolutions):
            ended_s = self._now_s - POINTS * fine.step_s - self._late_s
            async with self.database.transaction(epoch=epoch) as tx:
                rows = await store.complete_unfolded(tx, fine.step_s, ended_s, FOLDED_AT_ONCE)
                rows = [row for row in rows if store.place_of(row) not in self.open]
                blocks: dict[BlockKey, Block] = {}
                places = [_above(store.place_of(row), coarse.step_s) for row in rows]
                await tx.load(SeriesRow, *(store.key_of(place) for place in set(places)))
                for row, place in zip(rows, places, strict=True):
                    if place not in blocks:
                        blocks[place] = await store.block_at(tx, place)
                    blocks[place].fold(store.block_of(row))
                    tx.put(replace(row, folded=True))
                tx.put(*(store.row_of(block, coarse.keep_s) for block in blocks.values()))
            WRITTEN.inc(len(blocks))
            more |= len(rows) == FOLDED_AT_ONCE
        return 0.0 if more else None

    @property
    def _now_s(self) -> float:
        return self.now().timestamp()

    @property
    def _step_s(self) -> int:
        return self.resolutions[0].step_s

    @property
    def _late_s(self) -> float:
        """How late a sample may come."""
        return FOLD_AFTER_WRITES * self.bounds.write_seconds


def _above(place: BlockKey, step_s: int) -> BlockKey:
    return BlockKey(place.subject, place.part, step_s, begin_of(step_s, place.begins_s))
