"""Wires quota. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.quota.handlers import HANDLERS, READS, Commands, expire, prepare
from services.quota.settings import QuotaSettings
from services.quota.store import prune_rules
from services.quota.tables import TABLES


def build(settings: QuotaSettings, ports: Ports) -> Service:
    """The service, not running."""

    async def expire_rows(epoch: int) -> float | None:
        """Remove the rows whose time is over. The loop runs again after each command."""
        async with ports.store.transaction(epoch=epoch) as tx:
            seconds = await expire(tx)
        # A clock may be set: it is read again at each tick.
        return None if seconds is None else min(seconds, settings.expire_tick_seconds)

    return Service(
        name="quota",
        ports=ports,
        handlers=HANDLERS,
        reads=READS,
        prepare=prepare,
        commands=Commands(reemit_runs_max=settings.reemit_runs_max).table(),
        loops=(
            Loop("expire", expire_rows, tick_seconds=settings.expire_tick_seconds, exclusive=True),
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
