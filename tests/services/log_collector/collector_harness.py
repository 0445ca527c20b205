"""A collector with a source and an archive that tests can crash, and the handlers beside it."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any

from libs.bus.port import Bus
from libs.contracts.envelope import Envelope
from libs.contracts.messages import (
    ExitKind,
    LogChunk,
    Placement,
    RunExit,
    RunExited,
    RunStarted,
)
from libs.service.definition import Service
from libs.store.port import Store
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import Archive
from services.log_collector.domain import OutputKey, Timestamp
from services.log_collector.main import WIRING
from services.log_collector.settings import LogCollectorSettings
from services.log_collector.sources.port import LogSource
from services.log_collector.store import EntryRow, OutputRow, RunRow
from tests.kit.clock import at
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness

# Of one entry of the index of times.
ENTRY_TIME = timedelta(seconds=10)


def settings_with(**changes: Any) -> LogCollectorSettings:
    """Small limits, so that small outputs meet them."""
    fields: dict[str, Any] = {
        "database_url": "-",
        "nats_url": "-",
        "runs_dir": "/nowhere/runs",
        "logs_dir": "/nowhere/logs",
        "prune_days_per_hour": 0,
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
    return RunStarted(
        task_id=task, attempt=attempt, started_at=at(0), placements=gang(ranks), owner="ann"
    )


def exited(ranks: int = 1, attempt: int = 1, seconds: float = 0.0, task: str = "t1") -> RunExited:
    ended = RunExit(attempt=attempt, kind=ExitKind.OK, exited_at=at(seconds))
    return RunExited(task_id=task, attempt=attempt, exit=ended, placements=gang(ranks), owner="ann")


class CollectorHarness(ServiceHarness):
    """The service and the chunks that it published for live readers."""

    def __init__(
        self,
        source: LogSource,
        archive: Archive,
        settings: LogCollectorSettings,
        *,
        platform: MemoryPlatform,
        store: Store | None = None,
    ) -> None:
        self.archive = archive
        self.chunks: list[LogChunk] = []
        parts: dict[str, Any] = {"source": source, "archive": archive}
        super().__init__(platform, WIRING, settings, store=store, **parts)

    @property
    def bus(self) -> Bus:
        return self.service.ports.bus

    def _build(self, store: Store | None = None) -> Service:
        service = super()._build(store)
        bus, send = service.ports.bus, service.ports.bus.send_telemetry

        async def recorded(envelope: Envelope) -> None:
            self.chunks.append(envelope.message)
            await send(envelope)

        bus.send_telemetry = recorded  # type: ignore[method-assign]
        return service

    async def copy_and_record(self) -> float | None:
        """Copy once, then record what is due."""
        pause = await self.step("copy")
        await self.step("record")
        return pause

    async def settle(self) -> None:
        """Copy until there is nothing more to do at once, and everything is recorded."""
        for _ in range(1000):
            if await self.copy_and_record() != 0.0:
                break
        self.clock.advance(60)
        await self.copy_and_record()
        await self.copy_and_record()


async def sealed(harness: CollectorHarness) -> None:
    """Seal until everything of collected runs is sealed."""
    for _ in range(1000):
        if await harness.step("seal") is None:
            break
    rows = await harness.rows(RunRow)
    assert all(row.sealed for row in rows if row.collected)


async def collecting(
    source: LogSource,
    archive: Archive | None = None,
    settings: LogCollectorSettings | None = None,
    **more: Any,
) -> CollectorHarness:
    """A collector that leads."""
    parts = {"platform": MemoryPlatform(), **more}
    made = CollectorHarness(
        source, archive or MemoryArchive(), settings or settings_with(), **parts
    )
    await made.lead()
    return made


async def stored(archive: Archive, rank: int = 0) -> bytes:
    """All that the archive has of an output."""
    key = key_of(rank)
    return await archive.read(key, 0, await archive.size(key))


async def times_of(archive: Archive, row: OutputRow) -> list[Timestamp]:
    """The timestamps that count: as many as the database has."""
    key = key_of(row.rank, row.attempt)
    found = await archive.timestamps(key, 0, row.timestamps)
    assert len(found) == row.timestamps
    return found


async def without_times(harness: CollectorHarness) -> None:
    """Make of all that is recorded what a version without time stamps left: an index of times with
    an entry for ten seconds."""
    for row in await harness.rows(OutputRow):
        key = key_of(row.rank, row.attempt, row.task_id)
        entries: list[EntryRow] = []
        for each in await harness.archive.timestamps(key, 0, row.timestamps):
            if not entries or each.at - entries[-1].first_at >= ENTRY_TIME:
                entries.append(EntryRow(*astuple(key), each.offset, each.at, each.at))
            entries[-1] = replace(entries[-1], last_at=each.at)
        await harness.archive.truncate(key, row.size, 0, epoch=harness.epoch)
        async with harness.store.transaction(epoch=harness.epoch) as tx:
            tx.put(replace(row, timestamps=0), *entries)


def check_times(found: list[Timestamp], size: int) -> None:
    """Every byte has a time, and times never go backwards."""
    offsets = [each.offset for each in found]
    assert offsets[:1] == [0] * bool(size)
    assert offsets == sorted(set(offsets))
    assert all(offset < size for offset in offsets)
    assert [each.at for each in found] == sorted(each.at for each in found)
