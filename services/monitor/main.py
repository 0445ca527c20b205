"""Wires the monitor. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.service.definition import Ports, Service
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.monitor.handlers import COMMANDS, HANDLERS, READS
from services.monitor.settings import MonitorSettings
from services.monitor.store import prune_rules
from services.monitor.tables import TABLES


def build(settings: MonitorSettings, ports: Ports) -> Service:
    """The service, not running."""
    return Service(
        name="monitor",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        commands=COMMANDS,
        loops=(
            prune_loop(
                "monitor",
                ports.store,
                settings,
                *prune_rules(timedelta(seconds=settings.ended_tasks_keep_seconds)),
            ),
        ),
    )


WIRING = Wiring(
    name="monitor",
    settings=MonitorSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
)
