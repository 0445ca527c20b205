"""Wires quota. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.service.definition import Ports, Service
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.quota.handlers import HANDLERS, READS, Commands, prepare
from services.quota.settings import QuotaSettings
from services.quota.store import prune_rules
from services.quota.tables import TABLES


def build(settings: QuotaSettings, ports: Ports) -> Service:
    """The service, not running."""
    return Service(
        name="quota",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        prepare=prepare,
        commands=Commands(reemit_runs_max=settings.reemit_runs_max).table(),
        loops=(
            prune_loop(
                "quota",
                ports.store,
                settings,
                *prune_rules(timedelta(seconds=settings.ledger_keep_seconds)),
            ),
        ),
    )


WIRING = Wiring(
    name="quota",
    settings=QuotaSettings,
    build=build,
    tables=TABLES,
    migrations=Path(__file__).parent / "migrations",
    consumes=tuple(HANDLERS),
)
