"""submit's handlers on a store, and a clock that tests move. Events go in, events come out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from libs.contracts.base import Message
from libs.service.definition import Handler
from libs.store.port import Store
from services.submit.domain.facts import Rules
from services.submit.handlers import HANDLERS, Commands
from services.submit.ids import TimeSortedIds

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Hands:
    """A clock moved by hand."""

    moment: datetime = START

    def now(self) -> datetime:
        return self.moment

    def advance(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


def numbers() -> Any:
    counter = itertools.count(1)
    return lambda: f"event-{next(counter)}"


@dataclass
class World:
    store: Store
    clock: Hands
    commands: dict[type[Message], Handler]

    async def tell(self, *events: Message) -> None:
        """Each event in a transaction of its own, without an inbox: as a redelivery would be."""
        for event in events:
            async with self.store.transaction() as tx:
                await HANDLERS[type(event)](tx, event)

    async def ask(self, command: Message) -> Any:
        async with self.store.transaction() as tx:
            return await self.commands[type(command)](tx, command)

    async def said(self) -> list[Any]:
        """What was emitted since the last call."""
        rows = await self.store.outgoing(10_000)
        await self.store.published([number for number, _ in rows])
        return [envelope.message for _, envelope in rows]

    async def rows(self, kind: type[Any]) -> list[Any]:
        async with self.store.transaction() as tx:
            return await tx.select(kind)


def a_world(store: Store, clock: Hands, **more: Any) -> World:
    """Ids from a seed."""
    make_id = TimeSortedIds(Random(7).getrandbits)
    limits = {"reemit_tasks_max": 1000, "create_tasks_max": 100, "live_tasks_max": 1000}
    commands = Commands(rules=Rules(), make_id=make_id, **(limits | more))
    return World(store, clock, dict(commands.table()))
