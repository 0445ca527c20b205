"""Wires log-collector. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from libs.contracts.messages import ListSecretForms, ReadLogLines
from libs.service.definition import Ports, Service
from libs.service.loop import Loop, Wake
from libs.service.prune import PruneCutoff, number_cutoff
from libs.service.wiring import Wiring
from services.log_collector.archives.files import FileArchive
from services.log_collector.archives.port import Archive
from services.log_collector.collector import Collector
from services.log_collector.error_finder import ErrorFinder, error_loop
from services.log_collector.error_lines import patterns_of
from services.log_collector.handlers import HANDLERS, READS, Queries
from services.log_collector.line_pages import LinePages
from services.log_collector.loop import RUNS, OutputPruner, copy_loop, drop_loop, record_loop
from services.log_collector.masks import RunMasks, masks_loop
from services.log_collector.plain import PlainWriter, plain_loop
from services.log_collector.recorder import Recorder
from services.log_collector.sealing import Sealer, seal_loop
from services.log_collector.settings import LogCollectorSettings
from services.log_collector.sources.files import FileSource
from services.log_collector.sources.port import LogSource
from services.log_collector.state import SERVICE, State
from services.log_collector.tables import TABLES
from services.log_collector.write_times import Times


def build(
    settings: LogCollectorSettings,
    ports: Ports,
    *,
    source: LogSource | None = None,
    archive: Archive | None = None,
) -> Service:
    """The service, not running. Source and archive replace the files (in a simulation)."""
    archive = archive or archive_of(settings, ports)
    source = source or source_of(settings)
    state, record, seal, plain, ended = State(), Wake(), Wake(), Wake(), asyncio.Lock()
    masks = masks_of(settings, ports, state)
    collector = Collector(
        database=ports.store,
        bus=ports.bus,
        clock=ports.clock,
        source=source,
        archive=archive,
        bounds=settings,
        pace=settings,
        state=state,
        record=record,
        masks=masks,
    )
    recorder = Recorder(
        database=ports.store,
        clock=ports.clock,
        archive=archive,
        source=source,
        bounds=settings,
        state=state,
        wake=record,
        collected=(seal, plain),
        seal=seal,
    )
    sealer = Sealer(ports.store, archive, state, settings, ended)
    pruner = OutputPruner(
        database=ports.store,
        archive=archive,
        keep=timedelta(days=settings.keep_days),
        runs_max=settings.drop_runs_max,
        rows_max=settings.prune_rows_max,
        cutoff=PruneCutoff(SERVICE, RUNS, settings.prune_days_per_hour),
        number=number_cutoff(settings),
        bytes_per_owner_max=settings.bytes_per_user_max,
        ended=ended,
    )
    times = Times(archive=archive, transaction=ports.store.transaction)
    pages = LinePages(
        database=ports.store, archive=archive, times=times, state=state, answers=settings
    )
    finder = ErrorFinder(
        database=ports.store,
        archive=archive,
        patterns=patterns_of(settings.error_patterns_file),
        limits=settings,
    )
    return Service(
        name=SERVICE,
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        commands=Queries(state=state, archive=archive, times=times, answers=settings).table(),
        queries={ReadLogLines: pages.answer},
        loops=(
            copy_loop(ports.store, collector),
            record_loop(recorder),
            *((masks_loop(masks),) if masks is not None else ()),
            error_loop(ports.store, finder),
            seal_loop(sealer, seal),
            *plain_loops(settings, ports, archive, plain),
            drop_loop(pruner, settings.prune_tick_seconds),
        ),
        on_lead=collector.lead,
        tasks=source.tasks(),
    )


def masks_of(settings: LogCollectorSettings, ports: Ports, state: State) -> RunMasks | None:
    """What masks secrets; None where the source does."""
    if settings.source != "kubernetes":
        return None
    return RunMasks(ports.bus, state, ports.clock, settings.unreadable_seconds_max)


def plain_loops(
    settings: LogCollectorSettings, ports: Ports, archive: Archive, wake: Wake
) -> tuple[Loop, ...]:
    """The loop that writes plain files, where the site wants them."""
    if settings.plain_dir is None:
        return ()
    return (plain_loop(PlainWriter(ports.store, archive, settings, settings.plain_dir), wake),)


def archive_of(settings: LogCollectorSettings, ports: Ports) -> Archive:
    """Build the archive from the settings."""
    if not settings.bucket_url:
        return FileArchive(settings.logs_dir)
    # Here, not above: its client is large, and most sites have no bucket.
    from services.log_collector.archives.bucket import open_bucket  # noqa: PLC0415

    return FileArchive(settings.logs_dir, open_bucket(settings, ports.clock))


def source_of(settings: LogCollectorSettings) -> LogSource:
    """Build the sources of ranks' output from the settings."""
    if settings.source == "kubernetes":
        # Here, not above: its client is large, and one machine alone does not need it.
        from services.log_collector.sources.kubernetes import KubernetesSource  # noqa: PLC0415

        return KubernetesSource(settings)
    assert settings.runs_dir is not None
    return FileSource(settings.runs_dir)


WIRING = Wiring(
    name=SERVICE,
    settings=LogCollectorSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
    requests=(ListSecretForms,),
)
