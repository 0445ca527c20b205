"""Services on the memory adapters: one database, one broker, one clock, one source of ids."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import Faults, MemoryBroker
from libs.contracts.base import Message
from libs.contracts.envelope import Envelope
from libs.contracts.registry import ROUTES
from libs.service.clock import Clock
from libs.service.definition import Ports, Service
from libs.service.runner import Runner
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store.connections import Address
from libs.store.memory import MemoryStore
from libs.store.memory_database import MemoryDatabase
from libs.store.port import Store
from libs.store.sql import SqlStore
from libs.store.tables import Tables
from tests.kit.clock import START, FakeClock
from tests.kit.waiting import until


@asynccontextmanager
async def running(*runners: Runner) -> AsyncIterator[None]:
    """All these processes run, and each of them leads its service."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(runner.run()) for runner in runners]
        await until(lambda: all(runner.epoch for runner in runners))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def numbered(prefix: str = "e") -> Callable[[], str]:
    """A source of ids: ``e1``, ``e2`` and so on."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


class MemoryPlatform:
    """What services share; each has a schema of the database and a connection to the bus."""

    def __init__(
        self, clock: Clock | None = None, *, seed: int = 1, faults: Faults | None = None
    ) -> None:
        self.clock = clock or FakeClock()
        self.broker = MemoryBroker(Random(seed), faults)
        self.database = MemoryDatabase()
        self.new_id = numbered()
        self._connections: dict[str, MemoryBus] = {}

    def store(self, tables: Tables) -> MemoryStore:
        """One process's handle on a service's schema."""
        return MemoryStore(self.database, tables, **self._identity(tables))

    def sql_store(self, address: Address, tables: Tables) -> SqlStore:
        """The same on PostgreSQL."""
        return SqlStore(address, tables, **self._identity(tables))

    def bus(self, service: str, consumes: Collection[type[Message]] = ()) -> MemoryBus:
        """One process's connection to the bus."""
        return MemoryBus(self.broker, service, tuple(consumes))

    def build(
        self,
        wiring: Wiring,
        settings: BaseServiceSettings | None = None,
        *,
        store: Store | None = None,
        **replacements: Any,
    ) -> Service:
        """A service as its ``main.py`` builds it, not running."""
        ports = Ports(
            store=store or self.store(wiring.tables),
            bus=self.bus(wiring.name, wiring.consumes),
            clock=self.clock,
        )
        settings = settings or wiring.settings(database_url="-", nats_url="-")
        return wiring.build(settings, ports, **replacements)

    def runner(self, wiring: Wiring, settings: BaseServiceSettings | None = None) -> Runner:
        """One process of a service, not started."""
        settings = settings or wiring.settings(database_url="-", nats_url="-")
        return Runner(self.build(wiring, settings), settings)

    def connection(self, service: str) -> MemoryBus:
        """The connection by which a test plays a service that does not run here."""
        return self._connections.setdefault(service, self.bus(service))

    async def publish(self, *messages: Message) -> None:
        """Publish events as the services that own them do."""
        for message in messages:
            owner = ROUTES[type(message)].owner
            envelope = Envelope(id=self.new_id(), source=owner, time=START, message=message)
            await self.connection(owner).publish([envelope])

    def _identity(self, tables: Tables) -> dict[str, Any]:
        return {"clock": self.clock, "source": tables.schema, "new_id": self.new_id}
