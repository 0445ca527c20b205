"""A collector with a source and an archive that tests can crash, and the handlers beside it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.messages import (
    ExitKind,
    LogChunk,
    Placement,
    RunExit,
    RunExited,
    RunStarted,
)
from libs.service.definition import Ports, Service
from libs.store.memory import MemoryDatabase, MemoryStore
from libs.store.port import Store
from services.log_collector.archives.port import Archive, Write
from services.log_collector.domain import OutputKey, Timestamp
from services.log_collector.handlers import HANDLERS
from services.log_collector.main import build
from services.log_collector.settings import LogCollectorSettings
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import LogSource
from services.log_collector.store import OutputRow
from services.log_collector.tables import TABLES

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class ManualClock:
    """A clock moved by hand."""

    moment: datetime = START

    def now(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def numbers() -> Callable[[], str]:
    counter = itertools.count(1)
    return lambda: f"event-{next(counter)}"


def a_store(clock: ManualClock, database: MemoryDatabase | None = None) -> MemoryStore:
    return MemoryStore(
        database or MemoryDatabase(),
        TABLES,
        clock=clock,
        source="log_collector",
        new_id=numbers(),
    )


def settings_with(**changes: Any) -> LogCollectorSettings:
    """Small limits, so that small outputs meet them."""
    fields: dict[str, Any] = {
        "database_url": "-",
        "nats_url": "-",
        "runs_dir": "/nowhere/runs",
        "logs_dir": "/nowhere/logs",
        "prune_days_per_hour": 0,
        "index_bytes_min": 0,
    }
    return LogCollectorSettings(**(fields | changes))


def key_of(rank: int = 0, attempt: int = 1, task: str = "t1") -> OutputKey:
    return OutputKey(task, attempt, rank)


def gang(ranks: int) -> tuple[Placement, ...]:
    return tuple(
        Placement(rank=rank, role="worker", role_index=rank, node_id=f"n{rank}")
        for rank in range(ranks)
    )


def started(ranks: int = 1, attempt: int = 1, task: str = "t1") -> RunStarted:
    return RunStarted(task_id=task, attempt=attempt, started_at=at(0), placements=gang(ranks))


def exited(ranks: int = 1, attempt: int = 1, seconds: float = 0.0, task: str = "t1") -> RunExited:
    ended = RunExit(attempt=attempt, kind=ExitKind.OK, exited_at=at(seconds))
    return RunExited(task_id=task, attempt=attempt, exit=ended, placements=gang(ranks))


class CrashError(Exception):
    """The process dies here."""


@dataclass
class CrashingArchive:
    """Dies before or after one of its next calls that change something."""

    archive: Archive
    # How many more such points are passed; None: no crash.
    points_left: int | None = None

    def _pass(self) -> None:
        if self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                raise CrashError

    async def write(self, writes: Sequence[Write]) -> None:
        self._pass()
        for write in writes:
            for data in (b"", write.data[: len(write.data) // 2]):
                await self.archive.write([replace(write, data=data)])
                self._pass()
            await self.archive.write([write])
        self._pass()

    async def sync(self, keys: Sequence[OutputKey]) -> None:
        self._pass()
        await self.archive.sync(keys)
        self._pass()

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        return await self.archive.read(key, offset, bytes_max)

    async def size(self, key: OutputKey) -> int:
        return await self.archive.size(key)

    async def sizes(self, keys: Sequence[OutputKey]) -> list[int]:
        return await self.archive.sizes(keys)

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        return await self.archive.timestamps(key, first, count)

    async def partition(
        self, key: OutputKey, count: int, is_before: Callable[[Timestamp], bool]
    ) -> int:
        return await self.archive.partition(key, count, is_before)

    async def truncate(self, key: OutputKey, size: int, timestamps: int = 0) -> None:
        self._pass()
        await self.archive.truncate(key, size, timestamps)
        self._pass()

    async def remove(self, keys: Sequence[OutputKey]) -> None:
        self._pass()
        await self.archive.remove(keys)


class RecordingBus(MemoryBus):
    """A bus that records published chunks."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker(Random(1)), "log_collector")
        self.published: list[LogChunk] = []

    async def send_telemetry(self, envelope: Envelope) -> None:
        assert isinstance(envelope.message, LogChunk)
        self.published.append(envelope.message)
        await super().send_telemetry(envelope)


@dataclass
class CollectorHarness:
    """One process of log-collector after the other, on the same disk and database."""

    store: Store
    clock: ManualClock
    archive: Archive
    settings: LogCollectorSettings
    source: LogSource = field(default_factory=MemorySource)
    epoch: int | None = None

    def __post_init__(self) -> None:
        self.bus = RecordingBus()
        self.service = self._build()

    def _build(self) -> Service:
        ports = Ports(store=self.store, bus=self.bus, clock=self.clock)
        return build(self.settings, ports, source=self.source, archive=self.archive)

    async def lead(self) -> None:
        if self.epoch is None:
            self.epoch = (await self.store.lead()).epoch
        assert self.service.on_lead is not None
        await self.service.on_lead(self.epoch)

    async def restart(self, database: MemoryDatabase) -> None:
        """The process dies, and another one leads."""
        assert isinstance(self.store, MemoryStore)
        self.store.crash()
        self.store, self.epoch = a_store(self.clock, database), None
        self.service = self._build()
        await self.lead()

    async def handle_events(self, *events: Message) -> None:
        for event in events:
            async with self.store.transaction(epoch=self.epoch) as tx:
                await HANDLERS[type(event)](tx, event)

    async def query(self, query: Message) -> Any:
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await self.service.commands[type(query)](tx, query)

    async def step(self) -> float | None:
        """Copy once, then record what is due."""
        asked = await self.run("copy")
        await self.run("record")
        return asked

    async def run(self, loop: str) -> float | None:
        assert self.epoch is not None
        (step,) = [each.step for each in self.service.loops if each.name == loop]
        return await step(self.epoch)

    async def settle(self) -> None:
        """Step until there is nothing more to do at once, and everything is recorded."""
        for _ in range(1000):
            if await self.step() != 0.0:
                break
        self.clock.advance(60)
        await self.step()
        await self.step()

    async def rows(self, kind: type[Any]) -> list[Any]:
        async with self.store.transaction() as tx:
            return await tx.select(kind)


async def without_times(harness: CollectorHarness) -> None:
    """Make of all that is recorded what a version without time stamps left."""
    for row in await harness.rows(OutputRow):
        key = key_of(row.rank, row.attempt, row.task_id)
        await harness.archive.truncate(key, row.size, 0)
        async with harness.store.transaction(epoch=harness.epoch) as tx:
            tx.put(replace(row, timestamps=0))
