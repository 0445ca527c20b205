"""The wiring of a service, as a value, and its connections. Used by ``main`` and by ``up``.

Each ``services/<name>/main.py`` exports one ``WIRING``. Whatever runs services (a single process,
the all-in-one, the provisioner, the simulation) needs nothing else of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.bus.connection import BusConfig, Credentials
from libs.bus.jetstream import connect as connect_bus
from libs.bus.topology import Limits, Permissions, Topology, permissions_of, topology_of
from libs.contracts.base import Message
from libs.service.clock import SystemClock
from libs.service.definition import Ports, Service
from libs.service.settings import BaseServiceSettings
from libs.service.traces import KeptTraces, LoopTraces, tracing_of
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from libs.store.tables import Tables
from libs.tracing.context import current


@dataclass(frozen=True)
class Wiring:
    """One service, not yet connected: its settings, its tables and how it is built."""

    name: str
    settings: type[BaseServiceSettings]
    # build(settings, ports) -> Service; the settings are of the class above.
    build: Callable[[Any, Ports], Service]
    tables: Tables
    migrations: Path
    consumes: Collection[type[Message]]
    # Commands that it requests of others, and telemetry that it receives.
    requests: Collection[type[Message]] = field(default_factory=tuple)
    follows: Collection[type[Message]] = field(default_factory=tuple)
    # Frames of sessions and samples that it receives.
    hears: Collection[type[Message]] = field(default_factory=tuple)
    # Where the traces of the tasks go on that its loops act on. Its tables then have a
    # ``libs.store.task_traces.trace_table``.
    kept_traces: KeptTraces | None = None
    # It watches how full the stream of events is (``libs.service.stream_watch``).
    watches: bool = False
    # It copies events for monitoring users (``libs.bus.history_copy``).
    copies: bool = False

    @property
    def permissions(self) -> Permissions:
        """What its bus user may publish and receive."""
        return permissions_of(
            self.name,
            consumes=self.consumes,
            requests=self.requests,
            follows=self.follows,
            hears=self.hears,
            watches=self.watches,
            copies=self.copies,
        )


def topology(
    wirings: Collection[Wiring], limits: Limits | None = None, monitoring: Collection[str] = ()
) -> Topology:
    """The streams and durables that these services and monitoring users need."""
    consumes = {wiring.name: wiring.consumes for wiring in wirings}
    return topology_of(consumes, limits, monitoring)


def event_ids() -> Callable[[], str]:
    """Return a generator of event ids: unique among all processes, cheap, and readable in order.

    The stream and every inbox drop a second event of the same id. So an id ends with an
    unpredictable part: otherwise another service could publish an event under the next id first.
    """
    process, numbers = secrets.token_hex(8), itertools.count(1)
    return lambda: f"{process}-{next(numbers)}-{secrets.token_hex(8)}"


@contextlib.asynccontextmanager
async def connect(wiring: Wiring, settings: BaseServiceSettings) -> AsyncGenerator[Ports]:
    """Connect a service to its database and bus under its own credentials; close both at the end.

    BusUnavailableError or StoreUnavailableError if they are not there in time.
    """
    clock = SystemClock()
    address = Address(
        url=settings.database_url,
        password=settings.database_password(),
        connections_max=settings.database_pool_max,
        application=f"shiftwork-{wiring.name}",
    )
    if settings.migrate:
        await upgrade(address, wiring.tables, wiring.migrations)
    tracing, kept = tracing_of(wiring.name, settings), wiring.kept_traces
    store = SqlStore(
        address,
        wiring.tables,
        clock=clock,
        source=wiring.name,
        new_id=event_ids(),
        traceparent=current,
        traces=LoopTraces(tracing, kept, clock.now) if kept and tracing.on else None,
    )
    try:
        bus = await connect_bus(
            BusConfig(
                urls=tuple(settings.nats_url.split(",")),
                service=wiring.name,
                credentials=Credentials(
                    settings.nats_user or wiring.name, settings.nats_password() or ""
                ),
                consumes=tuple(wiring.consumes),
                copies=wiring.copies,
                ca_file=settings.nats_ca_file,
            )
        )
        try:
            yield Ports(store=store, bus=bus, clock=clock, tracing=tracing, kept_traces=kept)
        finally:
            await bus.close()
    finally:
        await store.close()
        if tracing.on:
            await asyncio.to_thread(tracing.close)
