"""Wires the monitor. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.contracts.messages import NodeSampled
from libs.service.definition import Ports, Service
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.monitor.domain.newest import Newest
from services.monitor.handlers import COMMANDS, HANDLERS, READS
from services.monitor.series.queries import Answers, Queries
from services.monitor.series.recorder import Bounds, Recorder
from services.monitor.series.store import prune_rule
from services.monitor.settings import MonitorSettings
from services.monitor.store import prune_rules
from services.monitor.tables import TABLES


def build(settings: MonitorSettings, ports: Ports) -> Service:
    """The service, not running."""
    recorder = Recorder(
        bus=ports.bus,
        database=ports.store,
        now=ports.clock.now,
        resolutions=settings.resolutions(),
        bounds=Bounds(
            settings.series_write_seconds,
            settings.series_rows_at_once,
            settings.series_blocks_max,
        ),
        newest=Newest(settings.newest_seconds),
    )
    answers = Answers(
        settings.series_points_max,
        settings.series_reply_points_max,
        settings.series_blocks_read_max,
    )
    return Service(
        name="monitor",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        commands=COMMANDS,
        queries=Queries(ports.store, recorder, answers, ports.clock.now).table(),
        loops=(
            *recorder.loops(),
            prune_loop(
                "monitor",
                ports.store,
                settings,
                *prune_rules(timedelta(seconds=settings.ended_tasks_keep_seconds)),
                prune_rule(),
            ),
        ),
        on_lead=recorder.lead,
        on_lead_end=recorder.lead_no_longer,
        tasks=(recorder.listen,),
    )


WIRING = Wiring(
    name="monitor",
    settings=MonitorSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
    hears=(NodeSampled,),
)
