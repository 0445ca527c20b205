"""Wires the monitor. Production, the all-in-one and the simulation call this same ``build``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from libs.service.definition import Ports, Service
from libs.service.loop import Loop
from libs.service.prune import prune_loop
from libs.service.wiring import Wiring
from services.monitor.delivery import Delivery
from services.monitor.handlers import HANDLERS, READS, Handlers
from services.monitor.notifications import Commands
from services.monitor.outgoing import Outgoing
from services.monitor.settings import MonitorSettings
from services.monitor.store import prune_rules
from services.monitor.tables import TABLES
from services.monitor.waiting import WaitingTasks


def build(settings: MonitorSettings, ports: Ports) -> Service:
    """The service, not running."""
    outgoing = Outgoing(settings.waiting_messages_max)
    delivery = Delivery(ports.store, ports.clock, settings, outgoing)
    waiting = WaitingTasks(ports.store, outgoing, settings.waiting_seconds)
    return Service(
        name="monitor",
        ports=ports,
        handlers=Handlers(outgoing).table(),
        reads=READS,
        commands=Commands(settings, outgoing).table(),
        on_lead_end=delivery.stop,
        tasks=(delivery.run,),
        loops=(
            Loop("delivery", delivery.step, tick_seconds=settings.delivery_tick_seconds),
            Loop(
                "waiting",
                waiting.step,
                tick_seconds=settings.waiting_tick_seconds,
                exclusive=True,
                wake_on_commit=False,
            ),
            prune_loop(
                "monitor",
                ports.store,
                settings,
                *prune_rules(
                    timedelta(seconds=settings.ended_tasks_keep_seconds),
                    timedelta(seconds=settings.messages_keep_seconds),
                ),
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
