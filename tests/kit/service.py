"""One service without a runner: events and commands go in, rows and events come out."""

from __future__ import annotations

from typing import Any

from libs.contracts.base import Message
from libs.service.definition import Service
from libs.service.settings import BaseServiceSettings
from libs.service.wiring import Wiring
from libs.store.memory import MemoryStore
from libs.store.port import Leadership, Store
from tests.kit.clock import FakeClock
from tests.kit.memory import MemoryPlatform


class ServiceHarness:
    """A service as its ``main.py`` builds it; after ``lead`` every transaction is fenced."""

    def __init__(
        self,
        platform: MemoryPlatform,
        wiring: Wiring,
        settings: BaseServiceSettings | None = None,
        *,
        store: Store | None = None,
        **replacements: Any,
    ) -> None:
        self.platform = platform
        self.settings = settings or wiring.settings(database_url="-", nats_url="-")
        self.leadership: Leadership | None = None
        self._wiring, self._replacements = wiring, replacements
        self._read = 0
        self.service = self._build(store)

    def _build(self, store: Store | None = None) -> Service:
        return self.platform.build(self._wiring, self.settings, store=store, **self._replacements)

    @property
    def store(self) -> Store:
        return self.service.ports.store

    @property
    def clock(self) -> FakeClock:
        assert isinstance(self.platform.clock, FakeClock)
        return self.platform.clock

    @property
    def epoch(self) -> int | None:
        return self.leadership and self.leadership.epoch

    async def lead(self) -> None:
        """Become the leader, as a new process does."""
        self.leadership = self.leadership or await self.store.lead()
        if self.service.on_lead is not None:
            await self.service.on_lead(self.leadership.epoch)

    async def restart(self) -> None:
        """The process dies and another one leads, on the same database in memory."""
        assert isinstance(self.store, MemoryStore)
        self.store.crash()
        self.service, self.leadership = self._build(), None
        await self.lead()

    async def handle(self, *events: Message) -> None:
        """Handle each event in its own transaction and without an inbox: as a redelivery."""
        for event in events:
            await self.handle_batch(event)

    async def handle_batch(self, *events: Message) -> None:
        """Handle the events in one transaction."""
        async with self.store.transaction(epoch=self.epoch) as tx:
            for event in events:
                await self.service.handlers[type(event)](tx, event)

    async def ask(self, command: Message) -> Any:
        """The reply to a command or query."""
        query = self.service.queries.get(type(command))
        if query is not None:
            return await query(command)
        async with self.store.transaction(epoch=self.epoch) as tx:
            return await self.service.commands[type(command)](tx, command)

    async def step(self, loop: str = "") -> float | None:
        """One round of a loop: of the first one if no name is given."""
        assert self.epoch is not None
        found = [each.step for each in self.service.loops if loop in {"", each.name}]
        return await found[0](self.epoch)

    async def published(self) -> list[Any]:
        """The events since the last call."""
        found = [(row, each) for row, each in await self.store.outgoing(10_000) if row > self._read]
        self._read = max((row for row, _ in found), default=self._read)
        return [envelope.message for _, envelope in found]

    async def rows(self, kind: type[Any]) -> list[Any]:
        async with self.store.transaction() as tx:
            return await tx.select(kind)

    async def put(self, *rows: object) -> None:
        async with self.store.transaction(epoch=self.epoch) as tx:
            tx.put(*rows)
